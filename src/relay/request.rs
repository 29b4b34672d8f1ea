//! What a worker may ask a client.

use serde_json::{Map, Value};

use crate::{Error, Result};

/// The kind of a request: which MCP request the client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// `elicitation/create`: a question to the user.
    Elicitation,
    /// `sampling/createMessage`: a question to the client's model.
    Sampling,
    /// `roots/list`: which roots the client offers.
    Roots,
}

impl RequestKind {
    /// The method of the MCP request.
    pub fn method(self) -> &'static str {
        match self {
            Self::Elicitation => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }

    /// As it is stored.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Elicitation => "elicitation",
            Self::Sampling => "sampling",
            Self::Roots => "roots",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        [Self::Elicitation, Self::Sampling, Self::Roots].into_iter().find(|kind| kind.word() == word)
    }
}

/// A request to a client: its kind, and the params as MCP has them. Members that this crate does not know pass through
/// unchanged.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Request {
    /// Which request.
    pub kind: RequestKind,
    /// The params of the request.
    pub params: Map<String, Value>,
}

impl Request {
    /// A question to the user, answered by a form: `message`, and the JSON schema of the content that is asked for.
    pub fn form(message: impl Into<String>, requested_schema: Value) -> Self {
        let mut params = Map::new();
        params.insert("mode".into(), "form".into());
        params.insert("message".into(), Value::String(message.into()));
        params.insert("requestedSchema".into(), requested_schema);
        Self { kind: RequestKind::Elicitation, params }
    }

    /// A question that the user answers at a URL. An acceptance carries no content: it says that the user went there.
    pub fn url(
        message: impl Into<String>,
        url: impl Into<String>,
        elicitation_id: impl Into<String>,
    ) -> Self {
        let mut params = Map::new();
        params.insert("mode".into(), "url".into());
        params.insert("message".into(), Value::String(message.into()));
        params.insert("url".into(), Value::String(url.into()));
        params.insert("elicitationId".into(), Value::String(elicitation_id.into()));
        Self { kind: RequestKind::Elicitation, params }
    }

    /// A question to the client's model, with the params of `sampling/createMessage`.
    pub fn sampling(params: Map<String, Value>) -> Self {
        Self { kind: RequestKind::Sampling, params }
    }

    /// Asks for the client's roots.
    pub fn roots() -> Self {
        Self { kind: RequestKind::Roots, params: Map::new() }
    }

    /// Sets one member of the params.
    #[must_use]
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// The text for the user; empty for the kinds that have none.
    pub fn message(&self) -> &str {
        self.params.get("message").and_then(Value::as_str).unwrap_or_default()
    }

    /// The schema of the content that an acceptance must carry.
    pub fn requested_schema(&self) -> Option<&Value> {
        (self.kind == RequestKind::Elicitation).then(|| self.params.get("requestedSchema")).flatten()
    }

    /// Whether the user is sent to a URL.
    pub fn is_url(&self) -> bool {
        self.kind == RequestKind::Elicitation
            && self.params.get("mode").and_then(Value::as_str) == Some("url")
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(&self.params).map_err(|e| Error::invalid("request", e.to_string()))
    }
}

/// What a client can be asked, as it declared it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Questions to the user by a form.
    pub form: bool,
    /// Questions to the user at a URL.
    pub url: bool,
    /// Questions to the client's model.
    pub sampling: bool,
    /// The client's roots.
    pub roots: bool,
}

impl Capabilities {
    /// Nothing.
    pub const NONE: Self = Self { form: false, url: false, sampling: false, roots: false };
    /// Everything.
    pub const ALL: Self = Self { form: true, url: true, sampling: true, roots: true };

    /// With or without questions by a form.
    #[must_use]
    pub fn form(mut self, can: bool) -> Self {
        self.form = can;
        self
    }

    /// With or without questions at a URL.
    #[must_use]
    pub fn url(mut self, can: bool) -> Self {
        self.url = can;
        self
    }

    /// With or without sampling.
    #[must_use]
    pub fn sampling(mut self, can: bool) -> Self {
        self.sampling = can;
        self
    }

    /// With or without roots.
    #[must_use]
    pub fn roots(mut self, can: bool) -> Self {
        self.roots = can;
        self
    }

    /// Whether such a client can be asked this.
    pub fn allow(&self, request: &Request) -> bool {
        match request.kind {
            RequestKind::Elicitation if request.is_url() => self.url,
            RequestKind::Elicitation => self.form,
            RequestKind::Sampling => self.sampling,
            RequestKind::Roots => self.roots,
        }
    }
}
