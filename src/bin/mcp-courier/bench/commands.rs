//! Where the server's time goes: CPU of each command, those inside scripts as well, for each message.

use std::collections::BTreeMap;

use super::measures::Measures;
use super::server::Target;

/// Calls and microseconds of each command so far.
pub struct Commands(BTreeMap<String, (f64, f64)>);

impl Commands {
    pub async fn now(target: &Target) -> Self {
        let text = target.command_stats().await.unwrap_or_default();
        Self(text.lines().filter_map(line).collect())
    }

    /// What was added since, for each of so many messages: `calls of <name>` and `us of <name>`. Commands that call
    /// others hold their time too.
    pub fn per_message(&self, later: &Self, messages: u64, into: &mut Measures) {
        for (name, (calls, us)) in &later.0 {
            let (calls_before, us_before) = self.0.get(name).copied().unwrap_or_default();
            let each = |value: f64| value / messages.max(1) as f64;
            let (calls, us) = (each(calls - calls_before), each(us - us_before));
            // What happens less than once in ten thousand messages is no part of the path.
            if calls > 0.0001 {
                into.insert(format!("calls of {name}"), calls);
                into.insert(format!("us of {name}"), us);
            }
        }
    }
}

/// `cmdstat_get:calls=1,usec=2,…`
fn line(line: &str) -> Option<(String, (f64, f64))> {
    let (name, values) = line.strip_prefix("cmdstat_")?.split_once(':')?;
    let value = |wanted: &str| -> Option<f64> {
        let mut pairs = values.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == wanted)?.1.trim().parse().ok()
    };
    Some((name.to_owned(), (value("calls")?, value("usec")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_shared_out() {
        let stats = |text: &str| Commands(text.lines().filter_map(line).collect());
        let before = stats("cmdstat_get:calls=10,usec=20,usec_per_call=2.00");
        let after = stats("cmdstat_get:calls=30,usec=100,usec_per_call=3\ncmdstat_zadd:calls=10,usec=30");
        let mut measures = Measures::new();
        before.per_message(&after, 10, &mut measures);
        assert_eq!(measures["calls of get"], 2.0);
        assert_eq!(measures["us of get"], 8.0);
        assert_eq!(measures["us of zadd"], 3.0);
    }
}
