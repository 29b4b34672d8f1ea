//! Who a request is from.

use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};

use crate::Result;
use crate::tasks::Scope;

/// The caller as a layer in front of the server verified it. The layer puts it into the extensions of the HTTP request;
/// it becomes the [`Scope`] of the tasks that the request makes and sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedCaller {
    client_id: String,
    subject: String,
}

impl VerifiedCaller {
    /// The client and the subject of a verified token.
    pub fn new(client_id: impl Into<String>, subject: impl Into<String>) -> Self {
        Self { client_id: client_id.into(), subject: subject.into() }
    }

    /// `client_id|subject`, so that no two callers have the same one.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when both together are longer than a scope may be.
    pub fn scope(&self) -> Result<Scope> {
        let client_id = self.client_id.replace('%', "%25").replace('|', "%7C");
        Scope::named(format!("{client_id}|{}", self.subject))
    }
}

pub(super) fn default(context: &RequestContext<RoleServer>) -> std::result::Result<Scope, ErrorData> {
    let parts = context.extensions.get::<http::request::Parts>();
    match parts.and_then(|parts| parts.extensions.get::<VerifiedCaller>()) {
        None => Ok(Scope::anonymous()),
        Some(caller) => caller.scope().map_err(|e| ErrorData::invalid_request(e.to_string(), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_callers_share_a_scope() {
        let scope = |a: &str, b: &str| VerifiedCaller::new(a, b).scope().expect("short").as_str().to_owned();
        assert_eq!(scope("app", "ada"), "app|ada");
        let all = [("a|b", "c"), ("a", "b|c"), ("a%7Cb", "c"), ("", "a|b|c"), ("a", ""), ("", "a"), ("", "")];
        let scopes: std::collections::HashSet<_> = all.iter().map(|(a, b)| scope(a, b)).collect();
        assert_eq!(scopes.len(), all.len());
        assert!(VerifiedCaller::new("", "").scope().is_ok_and(|scope| !scope.is_anonymous()));
    }
}
