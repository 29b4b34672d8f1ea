//! The files under `docs/performance/`: every row as JSON, and what is made of it for people.

use std::path::Path;

use super::row::Row;
use super::table::{label, number};
use super::{plot, targets};
use crate::output::Failure;

const RESULTS: &str = "results.jsonl";
const PAGE: &str = "results.md";
const PLOT: &str = "plot.svg";

/// Writes all three.
pub fn write(rows: &[Row], folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)?;
    let mut text = String::new();
    for row in rows {
        text += &serde_json::to_string(row).map_err(std::io::Error::other)?;
        text.push('\n');
    }
    std::fs::write(folder.join(RESULTS), text)?;
    render(folder)
}

/// Makes page and plot from the rows that are there.
pub fn render(folder: &Path) -> Result<(), Failure> {
    let file = folder.join(RESULTS);
    let text =
        std::fs::read_to_string(&file).map_err(|e| Failure::usage(format!("{}: {e}", file.display())))?;
    let mut rows = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let row = serde_json::from_str(line)
            .map_err(|e| Failure::usage(format!("{}, line {}: {e}", file.display(), n + 1)))?;
        rows.push(row);
    }
    std::fs::write(folder.join(PAGE), page(&rows))?;
    plot::write(&rows, &folder.join(PLOT))
}

fn page(rows: &[Row]) -> String {
    let mut page = String::from("# Results\n\n");
    page += "Made by `mcp-courier bench --report`; see [performance.md](../performance.md) for what each line means.\n";
    if let Some(row) = rows.first() {
        page += &format!(
            "redis {}, mcp-courier {}, up to {} interleaved rounds; medians, ratios of the same round in parentheses.\n",
            row.redis,
            row.version,
            rows.iter().map(|r| r.rounds).max().unwrap_or(0)
        );
    }
    page += "\n## Targets\n\n| target | must | aim | measured | |\n| --- | --- | --- | --- | --- |\n";
    for judged in targets::judge(rows) {
        page += &format!("| {} |\n", judged.cells().join(" | "));
    }
    let mut scenario = "";
    for row in rows {
        if row.scenario != scenario {
            scenario = &row.scenario;
            page += &format!("\n## {scenario}\n\n| | measured |\n| --- | --- |\n");
        }
        let values: Vec<String> =
            row.values.iter().map(|(name, spread)| cell(row, name, spread.median)).collect();
        let against = row.baseline.as_ref().map(|b| format!(" (x {b})")).unwrap_or_default();
        page += &format!("| {}{against} | {} |\n", label(row), values.join(", "));
    }
    page
}

fn cell(row: &Row, name: &str, median: f64) -> String {
    let ratio = row.ratio(name).map(|r| format!(" ({r:.2})")).unwrap_or_default();
    format!("{} {}{ratio}", name.replace('_', " "), number(median))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measures::Measures;
    use crate::bench::row::OURS;

    #[test]
    fn a_folder_is_made_anew_from_its_rows() {
        let folder = std::env::temp_dir().join(format!("bench-report-{}", uuid::Uuid::new_v4().simple()));
        let sample = |us: f64| [Measures::from([("p50_us".to_owned(), us), ("per_second".to_owned(), us)])];
        let mut rows = vec![Row::new("latency", "brpop").pushers(1).filled(&sample(100.0))];
        for sessions in [1, 1000] {
            let latency = Row::new("latency", OURS).pushers(1).sessions(sessions);
            rows.push(latency.filled(&sample(120.0)).against("brpop", &sample(120.0), &sample(100.0)));
            let rate = Row::new("throughput", OURS).pushers(64).waits_for("delivery").sessions(sessions);
            rows.push(rate.filled(&sample(5.0)));
        }
        write(&rows, &folder).expect("written");
        let read = |name| std::fs::read_to_string(folder.join(name)).expect("a file");
        let (first, plot) = (read(PAGE), read(PLOT));
        assert!(first.contains("(1.20)") && first.contains("| ≤ 1.50 x | ≤ 1.20 x | 1.20 x |"), "{first}");
        assert!(plot.contains("<svg") && plot.contains("claimed sessions"));
        render(&folder).expect("rendered");
        assert_eq!((read(PAGE), read(PLOT)), (first, plot));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
