//! Limits and durations, validated once.

use std::time::Duration;

use crate::partitions::MAX_PARTITIONS;
use crate::replicas::Replicas;
use crate::{Error, OnFull, Result, keys};

/// Where a message goes whose delivery failed and may be tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryOrder {
    /// It keeps its place; what stands behind it waits. Order is kept under retry.
    #[default]
    Fifo,
    /// It goes to the back of the queue, as FastMCP 3 did. Later messages overtake it.
    Tail,
}

impl RetryOrder {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Tail => "tail",
        }
    }
}

/// Every setting of a courier; see [`Builder`](crate::Builder) for what each one means.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) prefix: String,
    pub(crate) partitions: Option<u16>,
    pub(crate) ttl: Duration,
    pub(crate) dedupe: Duration,
    pub(crate) max_body_bytes: usize,
    pub(crate) bodies: crate::bodies::Bodies,
    pub(crate) max_sessions: usize,
    pub(crate) max_pending: u64,
    pub(crate) on_full: OnFull,
    pub(crate) max_attempts: u32,
    pub(crate) retry_order: RetryOrder,
    pub(crate) backoff: Duration,
    pub(crate) backoff_cap: Duration,
    pub(crate) dead_cap: u32,
    pub(crate) dead_ttl: Duration,
    pub(crate) batch: u32,
    pub(crate) batch_bytes: usize,
    pub(crate) handoff_bytes: usize,
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) look_again: Duration,
    pub(crate) node_grace: Duration,
    pub(crate) topic_keep: Duration,
    pub(crate) topic_window: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) deadline: Duration,
    pub(crate) replicas: Option<Replicas>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            prefix: "courier".into(),
            partitions: None,
            ttl: Duration::from_secs(300),
            dedupe: Duration::from_secs(60),
            max_body_bytes: 4 << 20,
            bodies: crate::bodies::Bodies::default(),
            max_sessions: 1_000_000,
            max_pending: 10_000,
            on_full: OnFull::Refuse,
            max_attempts: 3,
            retry_order: RetryOrder::Fifo,
            backoff: Duration::from_millis(200),
            backoff_cap: Duration::from_secs(30),
            dead_cap: 1_000,
            dead_ttl: Duration::from_secs(7 * 24 * 3600),
            batch: 64,
            batch_bytes: 1 << 20,
            handoff_bytes: 16 << 10,
            lease: Duration::from_secs(10),
            heartbeat: Duration::from_secs(1),
            look_again: Duration::from_secs(1),
            node_grace: Duration::from_secs(60),
            topic_keep: Duration::from_secs(300),
            topic_window: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(3),
            deadline: Duration::from_secs(10),
            replicas: None,
        }
    }
}

/// Longest duration that any setting or message may have.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// A duration as the scripts take it: whole milliseconds, a fraction counts as one.
pub(crate) fn millis(what: &'static str, d: Duration) -> Result<u64> {
    if d.is_zero() {
        return Err(Error::invalid(what, "is zero; use at least 1 ms"));
    }
    if d > MAX_DURATION {
        return Err(Error::invalid(what, "is longer than 365 days"));
    }
    Ok(u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

impl Config {
    pub(crate) fn check(&self) -> Result<()> {
        keys::check_prefix(&self.prefix)?;
        for (what, d) in [
            ("ttl", self.ttl),
            ("backoff", self.backoff),
            ("backoff cap", self.backoff_cap),
            ("dead letter ttl", self.dead_ttl),
            ("lease", self.lease),
            ("heartbeat", self.heartbeat),
            ("look again", self.look_again),
            ("node grace", self.node_grace),
            ("topic keep", self.topic_keep),
            ("topic window", self.topic_window),
            ("connect timeout", self.connect_timeout),
            ("call timeout", self.call_timeout),
            ("deadline", self.deadline),
        ] {
            millis(what, d)?;
        }
        if let Some(replicas) = self.replicas {
            replicas.check(self.deadline)?;
        }
        if self.partitions.is_some_and(|n| n == 0 || n > MAX_PARTITIONS) {
            return Err(Error::invalid("partitions", format!("use 1 to {MAX_PARTITIONS}")));
        }
        if self.dedupe > MAX_DURATION {
            return Err(Error::invalid("dedupe window", "is longer than 365 days"));
        }
        if self.heartbeat * 3 > self.lease {
            return Err(Error::invalid(
                "heartbeat",
                "must fit three times into the lease, or living nodes look dead",
            ));
        }
        if self.max_attempts == 0 {
            return Err(Error::invalid("max attempts", "is zero; a message needs at least one attempt"));
        }
        if self.max_sessions == 0 {
            return Err(Error::invalid("max sessions", "is zero; nothing could be served"));
        }
        if self.max_pending == 0 || self.max_pending > 10_000_000 {
            return Err(Error::invalid("max pending", "use 1 to 10,000,000"));
        }
        if self.max_body_bytes == 0 || self.max_body_bytes > 256 << 20 {
            return Err(Error::invalid("max body bytes", "use 1 byte to 256 MiB"));
        }
        if self.batch == 0 || self.batch > 512 {
            return Err(Error::invalid("batch", "use 1 to 512 messages"));
        }
        if self.batch_bytes == 0 || self.batch_bytes > 64 << 20 {
            return Err(Error::invalid("batch bytes", "use 1 byte to 64 MiB"));
        }
        if self.handoff_bytes > 1 << 20 {
            return Err(Error::invalid(
                "handoff bytes",
                "is over 1 MiB; subscribers' output buffers are limited",
            ));
        }
        if self.dead_cap == 0 || self.dead_cap > 100_000 {
            return Err(Error::invalid("dead letter limit", "use 1 to 100,000"));
        }
        Ok(())
    }

    /// Exponential from `backoff`, capped, with a jitter of a quarter to either side.
    pub(crate) fn retry_delay(&self, attempt: u32) -> Duration {
        let exponent = attempt.saturating_sub(1).min(20);
        let base = self.backoff.saturating_mul(1 << exponent).min(self.backoff_cap);
        base.mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        Config::default().check().expect("valid");
    }

    #[test]
    fn a_fraction_of_a_millisecond_is_one_and_nothing_overflows() {
        assert_eq!(millis("ttl", Duration::from_nanos(1)), Ok(1));
        assert_eq!(millis("ttl", Duration::from_micros(1001)), Ok(2));
        assert!(millis("ttl", Duration::ZERO).is_err());
        assert!(millis("ttl", Duration::MAX).is_err());
    }

    #[test]
    fn backoff_grows_and_is_capped() {
        let config = Config {
            backoff: Duration::from_millis(100),
            backoff_cap: Duration::from_secs(1),
            ..Config::default()
        };
        for _ in 0..100 {
            assert!(config.retry_delay(1) <= Duration::from_millis(125));
            assert!(config.retry_delay(2) >= Duration::from_millis(150));
            assert!(config.retry_delay(u32::MAX) <= Duration::from_millis(1250));
        }
    }
}
