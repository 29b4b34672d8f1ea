//! rmcp's peer as an asker.

use rmcp::model::{CustomRequest, ProtocolVersion, ServerRequest};
use rmcp::{Peer, RoleServer, ServiceError};
use serde::Deserialize;
use serde_json::Value;

use crate::relay::{Answer, AskError, Asker, Capabilities, Content, Question, RequestKind};

/// Asks the client of an rmcp [`Peer`]: elicitation, sampling, roots.
///
/// A client is asked what it declared in `initialize`. From 2026-07-28 on a server may not ask by itself, so such a client
/// can be asked nothing here; it is asked in the result of a call or of a task.
#[derive(Clone, Debug)]
pub struct PeerAsker {
    peer: Peer<RoleServer>,
    /// The client may come back to another replica, which then asks it.
    resumable: bool,
}

impl PeerAsker {
    /// For a client whose end is the end of its session, as over stdio.
    pub fn new(peer: Peer<RoleServer>) -> Self {
        Self { peer, resumable: false }
    }

    pub(super) fn resumable(peer: Peer<RoleServer>, resumable: bool) -> Self {
        Self { peer, resumable }
    }
}

impl Asker for PeerAsker {
    fn capabilities(&self) -> Capabilities {
        let Some(info) = self.peer.peer_info() else { return Capabilities::NONE };
        if info.protocol_version >= ProtocolVersion::V_2026_07_28 {
            return Capabilities::NONE;
        }
        // As JSON: rmcp marks some of these as on their way out.
        let declared = serde_json::to_value(&info.capabilities).unwrap_or_default();
        let has = |name: &str| declared.get(name).is_some_and(Value::is_object);
        let mode = |name: &str| declared["elicitation"].get(name).is_some_and(Value::is_object);
        // Whoever names no mode means forms.
        let form = has("elicitation") && (mode("form") || !mode("url"));
        Capabilities::NONE.form(form).url(mode("url")).sampling(has("sampling")).roots(has("roots"))
    }

    async fn ask(&self, question: Question) -> Result<Answer, AskError> {
        let kind = question.request.kind;
        // By the same name as rmcp's own requests, and with members that rmcp does not know.
        let params = Value::Object(question.request.params);
        let request = CustomRequest::new(kind.method(), Some(params));
        match self.peer.send_request(ServerRequest::CustomRequest(request)).await {
            Ok(result) => {
                let result = serde_json::to_value(result).map_err(|e| AskError::Failed(e.to_string()))?;
                answer(kind, result)
            }
            // Asked once more by whoever serves the session next.
            Err(ServiceError::TransportClosed) if self.resumable => std::future::pending().await,
            Err(ServiceError::TransportClosed) => Err(AskError::Gone),
            Err(_) if self.peer.is_transport_closed() && self.resumable => std::future::pending().await,
            Err(_) if self.peer.is_transport_closed() => Err(AskError::Gone),
            Err(e) => Err(AskError::Failed(e.to_string())),
        }
    }
}

fn answer(kind: RequestKind, result: Value) -> Result<Answer, AskError> {
    #[derive(Deserialize)]
    struct Elicited {
        action: String,
        #[serde(default)]
        content: Value,
    }
    if kind != RequestKind::Elicitation {
        return Ok(Answer::Accept(Content::from(result)));
    }
    let elicited: Elicited = serde_json::from_value(result).map_err(|e| AskError::Failed(e.to_string()))?;
    match &*elicited.action {
        "accept" => Ok(Answer::Accept(Content::from(elicited.content))),
        "decline" => Ok(Answer::Decline),
        "cancel" => Ok(Answer::Cancel),
        other => Err(AskError::Failed(format!("the client answered with the action {other:?}"))),
    }
}
