//! Glob patterns of SCAN.

/// Whether the whole of `text` fits `pattern` (`*`, `?`, `[a-z]`, `[^x]`, `\` quotes).
///
/// Only the last star is ever tried again, so the cost is at most pattern times text.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        let step = text.get(t).and_then(|&byte| one(&pattern[p..], byte));
        match (step, retry) {
            (Some(used), _) => {
                p += used;
                t += 1;
            }
            (None, _) if t == text.len() && p == pattern.len() => return true,
            (None, Some((after_star, from))) if from < text.len() => {
                p = after_star;
                t = from + 1;
                retry = Some((p, t));
            }
            (None, _) => return false,
        }
    }
}

/// Length of the pattern's first element when it fits `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', quoted, ..] => (*quoted == byte).then_some(2),
        [b'[', rest @ ..] => {
            let (negated, mut rest) = match rest {
                [b'^', rest @ ..] => (true, rest),
                _ => (false, rest),
            };
            let mut found = false;
            loop {
                rest = match rest {
                    [] => break,
                    [b']', rest @ ..] => {
                        let used = pattern.len() - rest.len();
                        return (found != negated).then_some(used);
                    }
                    [b'\\', quoted, rest @ ..] => {
                        found |= *quoted == byte;
                        rest
                    }
                    [low, b'-', high, rest @ ..] => {
                        found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                        rest
                    }
                    [same, rest @ ..] => {
                        found |= *same == byte;
                        rest
                    }
                };
            }
            // No closing bracket: Redis takes the set to end with the pattern.
            (found != negated).then_some(pattern.len())
        }
        [same, ..] => (*same == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_fit_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("a*b*c", "a-b-b-c", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a*", "a", true),
            ("*{p}:q:*", "courier:{p}:q:s", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        assert!(!matches("a*".repeat(50).as_bytes(), &[b'a'; 2000][..40]));
        assert!(!matches(format!("{}b", "a*".repeat(40)).as_bytes(), &[b'a'; 5000]));
    }
}
