//! `redis-benchmark -t lpush`, the yardstick that everybody has: what the server takes from a client that does nothing else.

use std::process::Stdio;

use super::args::Plan;
use super::measures::{Measures, Meter};
use super::server::Target;
use crate::output::Failure;

const PROGRAM: &str = "redis-benchmark";

/// Whether it is on the PATH, and the server ours: it writes to a key of its own choice.
pub fn usable(target: &Target) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join(PROGRAM).is_file());
    found && target.private_port().is_some()
}

/// One run with as many clients as there are pushers, one request each at a time.
pub async fn run(target: &Target, plan: &Plan) -> Result<Measures, Failure> {
    let port = target.private_port().ok_or_else(|| Failure::failed("not on a foreign server"))?;
    let requests = u64::from(plan.benchmark_requests);
    let meter = Meter::start(target).await;
    let output = tokio::process::Command::new(PROGRAM)
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-t", "lpush", "-P", "1", "--csv"])
        .args(["-c", &plan.pushers[1].to_string()])
        .args(["-n", &requests.to_string()])
        .args(["-d", &plan.body.to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let mut measures = Measures::new();
    meter.per_message(target, requests, &mut measures).await;
    // The client is another process, and its CPU not ours.
    measures.remove("client_us");
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |name: &str| {
        column(&text, name).ok_or_else(|| Failure::failed(format!("{PROGRAM}: no {name} in {text:?}")))
    };
    measures.insert("per_second".to_owned(), value("rps")?);
    measures.insert("p50_us".to_owned(), value("p50_latency_ms")? * 1000.0);
    measures.insert("p99_us".to_owned(), value("p99_latency_ms")? * 1000.0);
    let mut raw = target.raw().await?;
    redis::cmd("DEL").arg("mylist").exec_async(&mut raw).await.map_err(super::server::raw_failure)?;
    Ok(measures)
}

/// A column of the one line below the names.
fn column(csv: &str, name: &str) -> Option<f64> {
    let mut lines = csv.lines().skip_while(|l| !l.contains("\"rps\""));
    let cells = |l: &str| l.split(',').map(|c| c.trim_matches('"').to_owned()).collect::<Vec<_>>();
    let at = cells(lines.next()?).iter().position(|c| c == name)?;
    cells(lines.next()?).get(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_their_names() {
        let csv = "\"test\",\"rps\",\"p50_latency_ms\"\n\"LPUSH\",\"55396.00\",\"0.607\"\n";
        assert_eq!(column(csv, "rps"), Some(55_396.0));
        assert_eq!(column(csv, "p50_latency_ms"), Some(0.607));
        assert_eq!(column(csv, "p12"), None);
        assert_eq!(column("", "rps"), None);
    }
}
