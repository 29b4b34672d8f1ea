//! What one run of one side gives, and what all rounds of it come to.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::process;
use super::server::Target;
use crate::output::Failure;

/// Named numbers. The unit stands at the end of the name.
pub type Measures = BTreeMap<String, f64>;

/// Median, least and most over the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median: round(median), min: round(min), max: round(max) })
    }
}

/// Four significant digits are more than any of this is worth.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    if digits <= 0 {
        return value.round();
    }
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// CPU of both sides over a stretch of time.
pub struct Meter {
    redis: Option<Duration>,
    here: Option<Duration>,
}

impl Meter {
    pub async fn start(target: &Target) -> Self {
        Self { redis: target.cpu().await, here: process::cpu() }
    }

    /// What it came to for each of so many messages. The two questions themselves cost some 0.2 ms.
    pub async fn per_message(self, target: &Target, messages: u64, into: &mut Measures) {
        let here = process::cpu();
        let redis = target.cpu().await;
        for (name, from, to) in [("redis_us", self.redis, redis), ("client_us", self.here, here)] {
            if let (Some(from), Some(to)) = (from, to) {
                let us = to.saturating_sub(from).as_secs_f64() * 1e6;
                into.insert(name.to_owned(), us / messages.max(1) as f64);
            }
        }
    }
}

pub fn percentiles(histogram: &Histogram<u64>, into: &mut Measures) {
    for (name, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
        into.insert(name.to_owned(), histogram.value_at_quantile(quantile) as f64 / 1000.0);
    }
}

/// Nanoseconds up to a minute, to three digits.
pub fn histogram() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(|e| Failure::failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = Spread::of(vec![9.0, 1.0, 5.0]).expect("values");
        assert_eq!((spread.median, spread.min, spread.max), (5.0, 1.0, 9.0));
        assert_eq!(Spread::of(vec![1.0, 2.0]).expect("values").median, 1.5);
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn four_digits_are_kept() {
        assert_eq!(round(123_456.7), 123_457.0);
        assert_eq!(round(1.234_56), 1.235);
        assert_eq!(round(0.001_234_56), 0.001_235);
        assert_eq!(round(0.0), 0.0);
    }
}
