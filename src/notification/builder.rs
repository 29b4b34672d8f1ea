//! A notification whose names are checked when it is built, and not when it is pushed.

use serde_json::Value;

use super::{Notification, names};
use crate::{Result, TraceContext};

/// Builds a [`Notification`] and checks every name that was given.
///
/// ```
/// use mcp_courier::Notification;
///
/// # fn main() -> mcp_courier::Result<()> {
/// let built = Notification::builder("notifications/example.com/ready").param("shards", 3).build()?;
/// assert!(Notification::builder("not a method").build().is_err());
/// assert!(Notification::builder("notifications/x").meta("no such name", 1).build().is_err());
/// # drop(built);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a NotificationBuilder does nothing until `build`"]
pub struct NotificationBuilder {
    notification: Notification,
    refused: Option<crate::Error>,
}

impl Notification {
    /// A notification of any method, its names checked by [`NotificationBuilder::build`].
    pub fn builder(method: impl Into<String>) -> NotificationBuilder {
        let notification = Self::new(method);
        let refused = names::check_method(&notification.method).err();
        NotificationBuilder { notification, refused }
    }
}

impl NotificationBuilder {
    /// Sets one member of the params.
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.notification = self.notification.param(name, value);
        self
    }

    /// Sets one member of `params._meta`.
    pub fn meta(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let name = name.into();
        if let Err(e) = names::check_meta_name(&name) {
            self.refused.get_or_insert(e);
        }
        self.notification = self.notification.meta(name, value);
        self
    }

    /// Puts a trace context into `params._meta`.
    pub fn trace_context(mut self, context: &TraceContext) -> Self {
        self.notification = self.notification.trace_context(context);
        self
    }

    /// The notification.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) or [`Error::TooLarge`](crate::Error::TooLarge) for the first name that
    /// MCP does not allow.
    pub fn build(self) -> Result<Notification> {
        match self.refused {
            Some(e) => Err(e),
            None => Ok(self.notification),
        }
    }
}
