//! Rows for people.

use super::row::Row;

/// Columns in order; a value without one is printed at the end by its name.
const COLUMNS: [(&str, &str); 6] = [
    ("p50_us", "p50 us"),
    ("p99_us", "p99 us"),
    ("p999_us", "p99.9 us"),
    ("per_second", "msg/s"),
    ("redis_us", "redis us"),
    ("client_us", "client us"),
];

/// What was measured, in words.
pub fn label(row: &Row) -> String {
    let mut words = vec![format!("{} {}", row.scenario, row.system)];
    words.extend(row.sessions.map(|n| format!("{} sessions", grouped(f64::from(n)))));
    words.extend(row.pushers.map(|n| format!("{n} pushers")));
    words.extend(row.body.map(size));
    words.extend(row.waits_for.as_ref().map(|w| format!("waits for {w}")));
    words.join(", ")
}

fn size(bytes: usize) -> String {
    if bytes >= 1024 && bytes.is_multiple_of(1024) {
        format!("{} KiB", bytes / 1024)
    } else {
        format!("{bytes} B")
    }
}

/// The head of the table.
pub fn head() -> String {
    let mut line = format!("{:<66}", "");
    for (_, title) in COLUMNS {
        line += &format!("{title:>11}");
    }
    line
}

/// One row, and a second line with the ratios.
pub fn lines(row: &Row) -> Vec<String> {
    let mut line = format!("{:<66}", label(row));
    for (name, _) in COLUMNS {
        line += &format!("{:>11}", row.value(name).map(number).unwrap_or_default());
    }
    let mut lines = vec![line.trim_end().to_owned()];
    let others = row.values.iter().filter(|(name, _)| COLUMNS.iter().all(|(known, _)| known != name));
    lines.extend(others.map(|(name, spread)| {
        format!(
            "    {:<62}{:>11}   {} to {}",
            name.replace('_', " "),
            number(spread.median),
            number(spread.min),
            number(spread.max)
        )
    }));
    if let Some(baseline) = &row.baseline {
        let mut line = format!("{:<66}", format!("    x {baseline}"));
        for (name, _) in COLUMNS {
            line += &format!("{:>11}", row.ratio(name).map(|r| format!("{r:.2} x")).unwrap_or_default());
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// To about four digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => grouped(value),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// With commas.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 1.234, 12.34, 123.4, 1234.0, 1_234_567.0].map(number);
        assert_eq!(shown, ["0.00", "1.23", "12.3", "123", "1,234", "1,234,567"]);
    }

    #[test]
    fn a_label_says_what_was_measured() {
        let row = Row::new("throughput", "courier").sessions(1000).pushers(64).body(16 << 10);
        assert_eq!(label(&row), "throughput courier, 1,000 sessions, 64 pushers, 16 KiB");
    }
}
