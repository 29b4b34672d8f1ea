//! What the processes said, by message.

use std::collections::HashMap;

use super::args::Role;
use super::lines::{Last, Said};
use super::message::Name;

/// A process: its role, its number, and how many had that number before it.
pub type Who = (Role, u32, u32);

/// What is known of one message.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: Name,
    /// When its push began, and when the answer came.
    pub acked: Option<(u64, u64)>,
    /// The same, and why.
    pub refused: Option<(u64, u64, String)>,
    /// Attempts that the sink failed on purpose.
    pub failed: Vec<(u64, Who, u32)>,
    pub delivered: Vec<Taken>,
}

/// A sink took the message.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub at: u64,
    pub who: Who,
    pub attempt: u32,
    /// The claim under which it came.
    pub epoch: u64,
}

/// A session came to a process, or went.
#[derive(Clone, Debug)]
pub struct Turn {
    pub session: u32,
    pub who: Who,
    pub at: u64,
    /// `claim <epoch>`, or why it ended.
    pub what: String,
    pub claim: bool,
}

#[derive(Debug, Default)]
pub struct Ledger {
    pub entries: Vec<Entry>,
    index: HashMap<Name, usize>,
    pub turns: Vec<Turn>,
    /// What came that nobody pushed like this.
    pub wrong: Vec<String>,
    pub last: Vec<(Who, Last)>,
}

impl Ledger {
    fn entry(&mut self, name: Name) -> &mut Entry {
        let at = *self.index.entry(name).or_insert_with(|| {
            let (failed, delivered) = (Vec::new(), Vec::new());
            self.entries.push(Entry { name, acked: None, refused: None, failed, delivered });
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }

    pub fn get(&self, name: Name) -> Option<&Entry> {
        self.index.get(&name).map(|&at| &self.entries[at])
    }

    pub fn get_mut(&mut self, name: Name) -> Option<&mut Entry> {
        self.index.get(&name).map(|&at| &mut self.entries[at])
    }

    /// Writes down what concerns messages and sessions.
    pub fn hear(&mut self, who: Who, said: Said) {
        match said {
            Said::Acked { name, begun, at } => self.entry(name).acked = Some((begun, at)),
            Said::Refused { name, begun, at, why } => self.entry(name).refused = Some((begun, at, why)),
            Said::Failed { name, at, attempt } => self.entry(name).failed.push((at, who, attempt)),
            Said::Delivered { name, at, attempt, epoch } => {
                self.entry(name).delivered.push(Taken { at, who, attempt, epoch });
            }
            Said::Claimed { session, epoch, at } => {
                self.turns.push(Turn { session, who, at, what: format!("claim {epoch}"), claim: true });
            }
            Said::Ended { session, why, at } => {
                self.turns.push(Turn { session, who, at, what: why, claim: false });
            }
            Said::Wrong { what } => self.wrong.push(what),
            Said::Last(last) => self.last.push((who, last)),
            Said::Ready | Said::Served { .. } | Said::Idle => {}
        }
    }
}

impl Entry {
    /// When it was first delivered.
    pub fn first(&self) -> Option<u64> {
        self.delivered.iter().map(|taken| taken.at).min()
    }

    pub fn begun(&self) -> Option<u64> {
        self.acked.map(|(begun, _)| begun).or(self.refused.as_ref().map(|r| r.0))
    }
}
