//! Random calls of the scripts of tasks.

use super::{Call, Filled, INBOX, Model, NODES};
use crate::memory::tests::support::Wire;

impl Call<'_> {
    /// One of the newest tasks, or what is none, with its key.
    fn task(&mut self) -> String {
        let newest = self.model.made;
        let address = match self.rng.u8(..20) {
            0 => "unknown".to_owned(),
            1 => "foreign".to_owned(),
            _ => format!("t{}", self.rng.usize(newest.saturating_sub(5)..=newest)),
        };
        self.keys(&[&format!("t:{address}")]);
        self.addresses.push(address.clone());
        address
    }

    fn index(&mut self, idle: bool) {
        self.keys(&["legs"]);
        if idle {
            self.keys(&["idle"]);
        }
    }

    /// The token of its lease; now and then a wrong one.
    fn lease(&mut self, address: &str) {
        let known = self.model.leases.get(address).filter(|_| self.rng.u8(..10) > 0);
        self.args.push(known.cloned().unwrap_or_else(|| b"na:1:1".to_vec()));
    }

    fn worker(&mut self) -> &'static str {
        self.one(&["na:1", "na:2", "nb:1", "nc:9"])
    }

    /// Who asks, what it wants, and how others hear of it.
    fn stand(&mut self) {
        let (worker, want) = (self.worker(), self.one(&["0", "1", "3"]));
        self.args(&[worker, want, "1000", "20000", INBOX, "PUBLISH"]);
    }

    fn request(&mut self, keys: &[&'static str]) {
        let key = self.one(keys);
        self.args(&[key]);
        let body = self.bytes();
        self.args.push(body);
    }

    pub(super) fn tasks(&mut self, script: &str) {
        match script {
            "task_create" => {
                let address = self.task();
                self.index(true);
                self.args(&[&address]);
                for _ in ["call", "context"] {
                    let body = self.bytes();
                    self.args.push(body);
                }
                let (ttl, latest) = (self.one(&["3000", "600000"]), self.one(&["600000", "900000"]));
                let (message, session) = (self.one(&["", "hello"]), self.one(&["", "s1"]));
                let (delay, most) = (self.one(&["0", "0", "0", "2000"]), self.one(&["1", "50", "50"]));
                self.args(&[ttl, latest, "1000", message, session, delay, most, INBOX, "PUBLISH"]);
            }
            "task_get" => {
                self.task();
            }
            "task_update" => {
                let address = self.task();
                self.index(true);
                self.args(&[&address, INBOX, "PUBLISH"]);
                for _ in 0..self.count() {
                    self.request(&["a", "b", "c", "d", "e", "%20"]);
                }
            }
            "task_cancel" => {
                let address = self.task();
                self.index(false);
                self.args(&[&address, INBOX, "PUBLISH"]);
            }
            "task_watch" => {
                let (node, watch) = (self.one(&NODES), self.one(&["0", "5000", "500000"]));
                self.args(&[node, watch]);
                for _ in 0..self.count() {
                    self.task();
                }
            }
            "task_tell" => {
                self.task();
                let (teller, told) = (self.one(&["one", "two"]), self.one(&["0", "0", "1", "2", "4"]));
                let hold = self.one(&["2000", "600000"]);
                self.args(&[teller, told, hold]);
            }
            "task_scan" => {
                self.index(true);
                // The whole of it: engines walk in orders of their own.
                self.args(&["{0}:t:*", "0", "1000000"]);
            }
            "task_peek" => {
                let content = self.one(&["0", "1"]);
                self.args(&[content]);
                for _ in 0..self.count() {
                    self.task();
                }
            }
            "task_retry" => {
                let address = self.task();
                self.index(true);
                let id = self.one(&["new1", "new2"]);
                self.args(&[&address, id, INBOX, "PUBLISH"]);
            }
            "leg_take" => {
                self.index(true);
                let (worker, lease, attempts) =
                    (self.worker(), self.one(&["10", "3000", "3000", "60000"]), self.one(&["1", "3", "3"]));
                let want = self.one(&["0", "1", "3"]);
                self.args(&[worker, lease, attempts, "died", want, "1000", "20000", INBOX, "PUBLISH"]);
                let found = self.model.next.clone();
                for at in 0..self.count() {
                    let address = match found.get(at).filter(|_| self.rng.u8(..4) > 0) {
                        Some(address) => {
                            self.keys(&[&format!("t:{address}")]);
                            self.addresses.push(address.clone());
                            address.clone()
                        }
                        None => self.task(),
                    };
                    self.args(&[&address]);
                }
            }
            "leg_renew" => {
                self.index(false);
                let lease = self.one(&["10", "3000", "60000"]);
                self.args(&[lease]);
                for _ in 0..self.count() {
                    let address = self.task();
                    self.args(&[&address]);
                    self.lease(&address);
                }
            }
            "leg_done" | "leg_park" | "leg_return" => {
                let address = self.task();
                self.index(true);
                self.args(&[&address]);
                self.lease(&address);
                match script {
                    "leg_done" => {
                        let status = self.one(&["completed", "failed", "cancelled"]);
                        self.args(&[status]);
                        let body = self.bytes();
                        self.args.push(body);
                        let message = self.one(&["", "done"]);
                        self.args(&[message]);
                        self.stand();
                    }
                    "leg_park" => {
                        let body = self.bytes();
                        self.args.push(body);
                        let (message, delay) = (self.one(&["", "asking"]), self.one(&["0", "2000"]));
                        self.args(&[message, delay]);
                        self.stand();
                        for at in 0..self.rng.usize(..3) {
                            let body = self.bytes();
                            let keys: [&[&'static str]; 2] = [&["a", "b", "c"], &["d", "e", "f"]];
                            let key = self.one(keys[at]);
                            self.args(&[key]);
                            self.args.push(body);
                        }
                    }
                    _ => {
                        let (mode, delay) = (self.one(&["retry", "release"]), self.one(&["0", "10", "2000"]));
                        let (attempts, message) = (self.one(&["1", "3"]), self.one(&["", "failed"]));
                        self.args(&[mode, delay, attempts, "given up", message]);
                        self.stand();
                    }
                }
            }
            "leg_ask" => {
                let address = self.task();
                self.args(&[&address]);
                self.lease(&address);
                self.request(&["a", "b", "c", "%20"]);
                let most = self.one(&["1", "20"]);
                self.args(&[most, INBOX, "PUBLISH"]);
            }
            "leg_say" => {
                let address = self.task();
                self.args(&[&address]);
                self.lease(&address);
                self.args(&["how it goes", INBOX, "PUBLISH"]);
            }
            other => panic!("no random calls for the script {other}: add them here"),
        }
    }
}

impl Model {
    /// What a worker would remember.
    pub(super) fn learn_leg(&mut self, script: &str, call: &Filled, reply: &Wire) {
        let Wire::Group(_, parts) = reply else { return };
        match (script, parts.first()) {
            ("task_create", Some(Wire::Bulk(word))) if word == b"created" => self.made += 1,
            ("leg_take", Some(answers)) => {
                for (address, answer) in call.addresses.iter().zip(answers.items()) {
                    if let [Wire::Bulk(word), Wire::Bulk(lease), ..] = answer.items()
                        && word == b"leg"
                    {
                        self.leases.insert(address.clone(), lease.clone());
                    }
                }
            }
            _ => {}
        }
        if matches!(script, "leg_take" | "leg_done" | "leg_park" | "leg_return") && parts.len() == 3 {
            let next = parts[1].items().iter().map(|one| String::from_utf8_lossy(one.bytes()).into_owned());
            self.next = next.collect();
        }
    }
}
