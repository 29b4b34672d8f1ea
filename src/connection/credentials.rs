//! Who we are to the server, when that changes with time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A user name and a password. `Debug` shows neither.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// A password for the default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }

    /// A user with its password.
    pub fn user(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into() }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Credentials, String>> + Send>>;

/// Asked for credentials each time a connection is opened.
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn Fn() -> Answer + Send + Sync>);

impl Provider {
    pub(crate) fn new<F, Fut>(ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, String>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(ask())))
    }

    pub(super) async fn ask(&self) -> Result<Credentials, String> {
        (self.0)().await
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Provider")
    }
}
