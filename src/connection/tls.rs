//! Certificates for `rediss://`.

/// Certificates for `rediss://`, in PEM. Without any, the system's certificate authorities are trusted.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Tls {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Nothing of our own: the system's certificate authorities.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trust this certificate authority instead of the system's.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root = Some(pem.into());
        self
    }

    /// Show this certificate to the server (mutual TLS).
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((certificate_pem.into(), key_pem.into()));
        self
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("root", &self.root.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
