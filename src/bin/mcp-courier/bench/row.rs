//! One line of the results: a system in a scenario, with its ratios to a baseline.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::measures::{Measures, Spread};

/// The system that is no baseline.
pub const OURS: &str = "courier";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    pub scenario: String,
    /// `courier`, or a baseline.
    pub system: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<usize>,
    /// What a pusher waits for before its next message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    pub rounds: u32,
    pub values: BTreeMap<String, Spread>,
    /// What the ratios are to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Value by value through the baseline's of the same round.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ratios: BTreeMap<String, Spread>,
    pub redis: String,
    #[serde(rename = "crate")]
    pub version: String,
}

impl Row {
    pub fn new(scenario: &str, system: &str) -> Self {
        Self { scenario: scenario.to_owned(), system: system.to_owned(), ..Self::default() }
    }

    pub fn sessions(mut self, sessions: u32) -> Self {
        self.sessions = Some(sessions);
        self
    }

    pub fn pushers(mut self, pushers: u32) -> Self {
        self.pushers = Some(pushers);
        self
    }

    pub fn body(mut self, body: usize) -> Self {
        self.body = Some(body);
        self
    }

    pub fn waits_for(mut self, what: &str) -> Self {
        self.waits_for = Some(what.to_owned());
        self
    }

    /// Takes the samples of its rounds.
    pub fn filled(mut self, samples: &[Measures]) -> Self {
        self.rounds = samples.len() as u32;
        self.values = spreads(samples);
        self
    }

    /// Sets the ratios to a baseline that was measured in the same rounds.
    pub fn against(mut self, baseline: &str, ours: &[Measures], theirs: &[Measures]) -> Self {
        let through = |(ours, theirs): (&Measures, &Measures)| -> Measures {
            let ratio = |(name, ours): (&String, &f64)| {
                let theirs = theirs.get(name).filter(|v| **v > 0.0)?;
                Some((name.clone(), ours / theirs))
            };
            ours.iter().filter_map(ratio).collect()
        };
        let ratios: Vec<Measures> = ours.iter().zip(theirs).map(through).collect();
        self.baseline = Some(baseline.to_owned());
        self.ratios = spreads(&ratios);
        self
    }

    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.get(name).map(|s| s.median)
    }

    pub fn ratio(&self, name: &str) -> Option<f64> {
        self.ratios.get(name).map(|s| s.median)
    }
}

fn spreads(samples: &[Measures]) -> BTreeMap<String, Spread> {
    let names: std::collections::BTreeSet<&String> = samples.iter().flat_map(BTreeMap::keys).collect();
    let spread = |name: &String| {
        let values = samples.iter().filter_map(|s| s.get(name).copied()).collect();
        Some((name.clone(), Spread::of(values)?))
    };
    names.into_iter().filter_map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(value: f64) -> Measures {
        Measures::from([("per_second".to_owned(), value)])
    }

    #[test]
    fn a_ratio_is_of_one_round_and_not_of_the_medians() {
        let (ours, theirs) = ([20.0, 200.0, 2.0].map(sample), [10.0, 100.0, 2.0].map(sample));
        let row = Row::new("t", "courier").filled(&ours).against("raw", &ours, &theirs);
        assert_eq!(row.value("per_second"), Some(20.0));
        assert_eq!(row.ratio("per_second"), Some(2.0));
        assert_eq!(row.ratios["per_second"].min, 1.0);
    }

    #[test]
    fn a_row_survives_its_json() {
        let row = Row::new("t", "courier").sessions(3).filled(&[sample(1.5)]);
        let text = serde_json::to_string(&row).expect("JSON");
        assert_eq!(serde_json::from_str::<Row>(&text).expect("a row"), row);
    }
}
