//! In front of rmcp's HTTP service: what has to be done to a request before rmcp reads it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use rmcp::model::ProtocolVersion;
use serde_json::Value;
use tower_service::Service;

/// How a `subscriptions/listen` with tasks is named on its way through rmcp.
pub(super) const LISTEN: &str = "mcp-courier/listen";

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// As rmcp's `max_request_body_bytes`.
const MAX_BODY_BYTES: usize = 4 << 20;

/// A service in front of rmcp's `StreamableHttpService`, whose handler is a [`DurableTasks`](super::DurableTasks).
///
/// `subscriptions/listen` with `taskIds` is what rmcp cannot serve by itself: it does not know the field, and its
/// subscriptions refuse `notifications/tasks`. This renames such a request, so that
/// [`DurableTasks`](super::DurableTasks) gets it. The client is told which of the tasks are its own; each change of one of
/// them brings a `notifications/tasks` with what `tasks/get` says in that moment, the first at once. The stream ends when all
/// of them have, unless the client asked for other notifications too. Over other transports, and without this, clients poll.
///
/// Only requests whose `Mcp-Method` is about tasks are read, up to `max_body_bytes`; all others pass untouched.
///
/// ```
/// # use mcp_courier::rmcp::{DurableTasks, TaskHttp};
/// # use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
/// # fn serve<H: rmcp::ServerHandler>(durable: DurableTasks<H>) -> axum::Router {
/// # let sessions = std::sync::Arc::new(rmcp::transport::streamable_http_server::session::local::LocalSessionManager::default());
/// let service = StreamableHttpService::new(move || Ok(durable.clone()), sessions, StreamableHttpServerConfig::default());
/// axum::Router::new().nest_service("/mcp", TaskHttp::new(service))
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TaskHttp<S> {
    inner: S,
    fill_names: bool,
    max_body_bytes: usize,
}

impl<S> TaskHttp<S> {
    /// Wraps rmcp's service, or what stands in front of it already.
    pub fn new(inner: S) -> Self {
        Self { inner, fill_names: false, max_body_bytes: MAX_BODY_BYTES }
    }

    /// Fills in the header `Mcp-Name` of `tasks/get`, `tasks/update`, `tasks/cancel` for clients that leave it out, from the
    /// body. The extension demands it, and rmcp refuses requests without it; there are clients that do not send it. Default
    /// no.
    #[must_use]
    pub fn fill_names(mut self, fill: bool) -> Self {
        self.fill_names = fill;
        self
    }

    /// Largest request that is read; a larger one passes untouched, to be refused by rmcp. Default 4 MiB, as rmcp's.
    #[must_use]
    pub fn max_body_bytes(mut self, most: usize) -> Self {
        self.max_body_bytes = most;
        self
    }

    fn wants<B>(&self, request: &Request<B>) -> Option<Wanted> {
        let headers = request.headers();
        let modern = text(headers, &VERSION).is_some_and(|v| v >= ProtocolVersion::V_2026_07_28.as_str());
        if request.method() != Method::POST || !modern {
            return None;
        }
        match text(headers, &METHOD)? {
            "subscriptions/listen" => Some(Wanted::Rename),
            "tasks/get" | "tasks/update" | "tasks/cancel"
                if self.fill_names && !headers.contains_key(&NAME) =>
            {
                Some(Wanted::Name)
            }
            _ => None,
        }
    }
}

/// What is done to a request.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Rename,
    Name,
}

/// The only value of a header.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(first)
}

impl<S, B, R> Service<Request<B>> for TaskHttp<S>
where
    S: Service<Request<TaskBody<B>>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    R: 'static,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is used, its clone takes its place.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let Some(wanted) = self.wants(&request) else {
            return Box::pin(inner.call(request.map(|body| TaskBody(Parts::Untouched(Box::pin(body))))));
        };
        let most = self.max_body_bytes;
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let body = match read(body, most).await {
                TaskBody(Parts::Whole(Some(whole))) => {
                    let changed = change(wanted, &mut parts.headers, &whole);
                    TaskBody(Parts::Whole(Some(changed.unwrap_or(whole))))
                }
                other => other,
            };
            inner.call(Request::from_parts(parts, body)).await
        })
    }
}

/// The new body, if there is one. What cannot be read is rmcp's to refuse.
fn change(wanted: Wanted, headers: &mut HeaderMap, body: &[u8]) -> Option<Bytes> {
    let mut message: Value = serde_json::from_slice(body).ok()?;
    if text(headers, &METHOD) != message["method"].as_str() {
        return None;
    }
    match wanted {
        Wanted::Name => {
            let name = HeaderValue::from_str(message["params"]["taskId"].as_str()?).ok()?;
            headers.insert(NAME, name);
            None
        }
        Wanted::Rename => {
            message.get("params")?.get("notifications")?.get("taskIds")?;
            message["method"] = LISTEN.into();
            let changed = serde_json::to_vec(&message).ok()?;
            headers.insert(METHOD, HeaderValue::from_static(LISTEN));
            headers.insert(CONTENT_LENGTH, changed.len().into());
            Some(changed.into())
        }
    }
}

/// The whole body, or what was read of it and the rest.
async fn read<B: Body>(body: B, most: usize) -> TaskBody<B> {
    let mut body = Box::pin(body);
    let mut read = BytesMut::new();
    loop {
        match body.frame().await {
            None => return TaskBody(Parts::Whole(Some(read.freeze()))),
            Some(Err(error)) => return TaskBody(Parts::Failed(Some(error))),
            Some(Ok(frame)) => {
                if let Ok(mut data) = frame.into_data() {
                    read.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
        if read.len() > most {
            return TaskBody(Parts::Begun(Some(read.freeze()), body));
        }
    }
}

/// The body of a request that came through [`TaskHttp`].
pub struct TaskBody<B: Body>(Parts<B>);

impl<B: Body> std::fmt::Debug for TaskBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskBody").finish_non_exhaustive()
    }
}

enum Parts<B: Body> {
    Untouched(Pin<Box<B>>),
    /// Read, and changed perhaps.
    Whole(Option<Bytes>),
    /// What was read of it, and the rest.
    Begun(Option<Bytes>, Pin<Box<B>>),
    Failed(Option<B::Error>),
}

impl<B: Body> Unpin for TaskBody<B> {}

impl<B: Body> Body for TaskBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let rest = match &mut self.get_mut().0 {
            Parts::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Parts::Failed(error) => return Poll::Ready(error.take().map(Err)),
            Parts::Begun(bytes, rest) => match bytes.take() {
                Some(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => rest,
            },
            Parts::Untouched(body) => body,
        };
        let frame = std::task::ready!(rest.as_mut().poll_frame(cx));
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|mut data| data.copy_to_bytes(data.remaining())))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Parts::Whole(bytes) => bytes.is_none(),
            Parts::Failed(error) => error.is_none(),
            Parts::Begun(bytes, rest) => bytes.is_none() && rest.is_end_stream(),
            Parts::Untouched(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Parts::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Parts::Untouched(body) => body.size_hint(),
            Parts::Begun(..) | Parts::Failed(_) => SizeHint::default(),
        }
    }
}
