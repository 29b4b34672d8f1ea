//! What the controller and its processes say to each other: a line each, over stdin and stdout.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::message::Name;

/// From the controller to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Serve this session.
    Serve(u32),
    /// Give this session back.
    Stop(u32),
    /// Push nothing new; say [`Said::Idle`] when the outcome of every push is known.
    Rest,
    /// Shut down in good order, say [`Said::Last`], and end.
    End,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serve(session) => write!(f, "serve {session}"),
            Self::Stop(session) => write!(f, "stop {session}"),
            Self::Rest => f.write_str("rest"),
            Self::End => f.write_str("end"),
        }
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let unknown = || format!("unknown order {line:?}");
        match line.split_once(' ') {
            Some(("serve", n)) => n.parse().map(Self::Serve).map_err(|_| unknown()),
            Some(("stop", n)) => n.parse().map(Self::Stop).map_err(|_| unknown()),
            None if line == "rest" => Ok(Self::Rest),
            None if line == "end" => Ok(Self::End),
            _ => Err(unknown()),
        }
    }
}

/// From a process to the controller. Moments are of [`super::clock`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// Connected.
    Ready,
    /// A push was acknowledged.
    Acked { name: Name, begun: u64, at: u64 },
    /// A push was refused: nothing was stored.
    Refused { name: Name, begun: u64, at: u64, why: String },
    /// The sink took a message.
    Delivered { name: Name, at: u64, attempt: u32, epoch: u64 },
    /// The sink did not take it, on purpose.
    Failed { name: Name, at: u64, attempt: u32 },
    /// Something came that was never pushed like this.
    Wrong { what: String },
    /// A session is this process's.
    Claimed { session: u32, epoch: u64, at: u64 },
    /// And no more.
    Ended { session: u32, why: String, at: u64 },
    /// What became of [`Order::Serve`].
    Served { session: u32, error: Option<String> },
    /// Every outcome is known.
    Idle,
    /// The last words.
    Last(Last),
}

/// What a process says when it shut down in good order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Last {
    /// Tasks of its runtime that were not there before it connected.
    pub tasks: usize,
    /// Sessions in its registry.
    pub sessions: usize,
    /// Sessions that it could not give back.
    pub abandoned: usize,
    /// Metrics of the courier.
    pub metrics: serde_json::Value,
}

impl Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_are_read_as_they_were_written() {
        for order in [Order::Serve(3), Order::Stop(0), Order::Rest, Order::End] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        assert!("serve x".parse::<Order>().is_err() && "go".parse::<Order>().is_err());
        let name = Name { session: 1, producer: 2, life: 3, seq: 4 };
        let said = Said::Refused { name, begun: 1, at: 2, why: "a\nb".into() };
        let line = serde_json::to_string(&said).expect("JSON");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Said>(&line).expect("JSON"), said);
    }
}
