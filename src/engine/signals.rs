//! Names that parts of this process listen to: `@<name>` or `@<name> <payload>` in the node's inbox wakes them.
//!
//! A signal is a hint, as a doorbell is: it may be lost with its connection, so what it tells stands in Redis as well.
//! After a reconnect every listener is told to look again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a listener hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal<'a> {
    /// Somebody rang, with these bytes (none when the payload had none).
    Rang(&'a [u8]),
    /// Signals may have been lost: look at what is stored.
    LookAgain,
}

/// Runs inside the driver of the bell connection, and of what resyncs: it must not block.
type Listener = Arc<dyn Fn(Signal<'_>) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Signals(Mutex<Table>);

#[derive(Default)]
struct Table {
    next: u64,
    by_name: HashMap<Box<str>, Vec<(u64, Listener)>>,
}

/// Listens until it is dropped.
pub(crate) struct Listening {
    signals: Arc<Signals>,
    name: Box<str>,
    number: u64,
}

impl Signals {
    /// Any number may listen to one name. A name has no space.
    pub(crate) fn listen(
        self: &Arc<Self>,
        name: &str,
        hear: impl Fn(Signal<'_>) + Send + Sync + 'static,
    ) -> Listening {
        let mut table = self.lock();
        table.next += 1;
        let number = table.next;
        table.by_name.entry(name.into()).or_default().push((number, Arc::new(hear)));
        Listening { signals: self.clone(), name: name.into(), number }
    }

    /// A frame without its leading `@`.
    pub(super) fn ring(&self, frame: &[u8]) {
        let end = frame.iter().position(|&b| b == b' ').unwrap_or(frame.len());
        let Ok(name) = std::str::from_utf8(&frame[..end]) else { return };
        let payload = frame.get(end + 1..).unwrap_or_default();
        // Called outside of the lock: a listener may listen to more.
        let listeners: Vec<Listener> = match self.lock().by_name.get(name) {
            Some(all) => all.iter().map(|(_, hear)| hear.clone()).collect(),
            None => return,
        };
        for hear in listeners {
            hear(Signal::Rang(payload));
        }
    }

    pub(super) fn look_again(&self) {
        let listeners: Vec<Listener> =
            self.lock().by_name.values().flatten().map(|(_, hear)| hear.clone()).collect();
        for hear in listeners {
            hear(Signal::LookAgain);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut table = self.signals.lock();
        if let Some(all) = table.by_name.get_mut(&self.name) {
            all.retain(|(number, _)| *number != self.number);
            if all.is_empty() {
                table.by_name.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_reaches_those_who_listen_to_its_name_and_nobody_after_they_left() {
        let signals = Arc::new(Signals::default());
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let listen = |name: &str, who: &'static str| {
            let heard = heard.clone();
            signals.listen(name, move |signal| {
                let what = match signal {
                    Signal::Rang(payload) => String::from_utf8_lossy(payload).into_owned(),
                    Signal::LookAgain => "look".into(),
                };
                heard.lock().expect("not poisoned").push(format!("{who}:{what}"));
            })
        };
        let (a, b) = (listen("x:1", "a"), listen("x:1", "b"));
        signals.ring(b"x:1 hello world");
        signals.ring(b"x:2 nobody");
        signals.ring(b"\xff\xff");
        drop(a);
        signals.ring(b"x:1");
        signals.look_again();
        drop(b);
        signals.ring(b"x:1");
        assert_eq!(*heard.lock().expect("not poisoned"), ["a:hello world", "b:hello world", "b:", "b:look"]);
        assert!(signals.lock().by_name.is_empty());
    }
}
