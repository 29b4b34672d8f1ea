//! Numbers as Redis reads and prints them.

/// A decimal integer in its only spelling: no sign but a needed minus, no leading zeros, no spaces.
pub(super) fn parse_int(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [] => false,
        [b'0', ..] => text == b"0",
        _ => digits.iter().all(u8::is_ascii_digit),
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A floating point number; not NaN, not one too large to be written.
pub(super) fn parse_double(text: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let overflow = value.is_infinite() && text.iter().any(u8::is_ascii_digit);
    (!value.is_nan() && !overflow).then_some(value)
}

/// Prints as C's `%.17g` does, which is what Redis 7.0 sends and what `redis.call` passes on.
pub(super) fn format_double(value: f64) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if value.fract() == 0.0 && value.abs() < 1e17 {
        return format!("{value:.0}");
    }
    let scientific = format!("{value:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..17).contains(&exponent) {
        return strip(&format!("{value:.*}", (16 - exponent) as usize)).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", strip(mantissa), exponent.abs())
}

fn strip(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_spelling() {
        for good in ["0", "7", "-7", "9223372036854775807", "-9223372036854775808"] {
            assert_eq!(parse_int(good.as_bytes()).map(|n| n.to_string()).as_deref(), Some(good));
        }
        for bad in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "0x1", "9223372036854775808"] {
            assert_eq!(parse_int(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn doubles_print_as_c_prints_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (0.1, "0.10000000000000001"),
            (1.5, "1.5"),
            (-2.25, "-2.25"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (1e-7, "9.9999999999999995e-08"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format_double(value), text);
        }
    }

    #[test]
    fn doubles_outside_the_range_are_refused() {
        assert_eq!(parse_double(b"-inf"), Some(f64::NEG_INFINITY));
        assert_eq!(parse_double(b"1e3"), Some(1000.0));
        for bad in [&b""[..], b"nan", b"1e400", b" 1", b"1x", b"\xff"] {
            assert_eq!(parse_double(bad), None);
        }
    }
}
