//! The messages of a run: everything about one follows from its name and the seed, so that every process knows it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mcp_courier::{MessageId, SessionId};

/// Who pushed it, where, and its number there. Numbers begin with 0 in each life of a producer. In the order of this
/// type the messages of one producer for one session were pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    pub session: u32,
    pub producer: u32,
    /// A producer that is killed is followed by another one with the same number and the next life.
    pub life: u32,
    pub seq: u32,
}

/// What is to become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The sink takes it.
    Plain,
    /// The sink fails at the first attempt.
    Fails,
    /// The sink rejects it: a dead letter.
    Rejected,
    /// It is only good for [`SHORT`]: delivered by then, or expired.
    Short,
}

/// The time to live of [`Fate::Short`].
pub const SHORT: Duration = Duration::from_secs(3);
/// Of all others: longer than any run.
pub const LONG: Duration = Duration::from_secs(24 * 3600);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.session, self.producer, self.life, self.seq)
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = text.split('-').map(str::parse::<u32>);
        let mut next =
            || numbers.next().and_then(Result::ok).ok_or_else(|| format!("{text:?} is no message"));
        let name = Self { session: next()?, producer: next()?, life: next()?, seq: next()? };
        if numbers.next().is_some() { Err(format!("{text:?} is no message")) } else { Ok(name) }
    }
}

/// The session with that number.
pub fn session(number: u32) -> Result<SessionId, mcp_courier::Error> {
    SessionId::new(format!("soak-{number}"))
}

impl Name {
    pub fn id(&self) -> Result<MessageId, mcp_courier::Error> {
        MessageId::new(self.to_string())
    }

    fn chance(&self, seed: u64) -> fastrand::Rng {
        let numbers = [self.session, self.producer, self.life, self.seq];
        // FNV-1a over the numbers: neighbours begin far apart.
        let mixed = numbers.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, &n| {
            (hash ^ u64::from(n)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        fastrand::Rng::with_seed(mixed)
    }

    pub fn fate(&self, seed: u64) -> Fate {
        match self.chance(seed).u32(..1000) {
            0..20 => Fate::Fails,
            20..23 => Fate::Rejected,
            23..33 => Fate::Short,
            _ => Fate::Plain,
        }
    }

    pub fn ttl(&self, seed: u64) -> Duration {
        if self.fate(seed) == Fate::Short { SHORT } else { LONG }
    }

    /// Its own name, and bytes that belong to it alone; sometimes more than what a doorbell carries.
    pub fn body(&self, seed: u64) -> Vec<u8> {
        let mut chance = self.chance(seed);
        let length = match chance.u32(..100) {
            0..3 => chance.usize(16_000..24_000),
            3..20 => chance.usize(500..4_000),
            _ => chance.usize(0..300),
        };
        let mut body = format!("{self} ").into_bytes();
        body.extend((0..length).map(|_| chance.u8(..)));
        body
    }

    /// How long the sink takes for it.
    pub fn pause(&self, seed: u64) -> Option<Duration> {
        let mut chance = self.chance(seed ^ 1);
        (chance.u32(..100) < 5).then(|| Duration::from_millis(chance.u64(5..60)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_decides_everything() {
        let name = Name { session: 7, producer: 1, life: 2, seq: 1_000_003 };
        assert_eq!(name.to_string().parse(), Ok(name));
        for wrong in ["", "1-2-3", "1-2-3-4-5", "1-2-3-x", "-1-2-3-4"] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
        assert_eq!(name.body(5), name.body(5));
        assert_ne!(name.body(5), name.body(6));
        let fates: Vec<Fate> = (0..10_000).map(|seq| Name { seq, ..name }.fate(5)).collect();
        let count = |fate| fates.iter().filter(|&&f| f == fate).count();
        assert!((100..400).contains(&count(Fate::Fails)), "{}", count(Fate::Fails));
        assert!((5..100).contains(&count(Fate::Rejected)), "{}", count(Fate::Rejected));
        assert!((30..250).contains(&count(Fate::Short)), "{}", count(Fate::Short));
    }
}
