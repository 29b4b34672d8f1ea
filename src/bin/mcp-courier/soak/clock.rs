//! One clock for all processes of a run.

use std::time::Duration;

/// Microseconds of the machine's monotonic clock: the same in every process, so that what one wrote down before
/// another acted on it has the smaller number.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let time = Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0));
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A difference of two such numbers.
pub fn between(from: u64, to: u64) -> Duration {
    Duration::from_micros(to.saturating_sub(from))
}
