//! Errors of commands inside scripts, as Redis before 7.0 tells them: wrapped in words of its own.
//!
//! From 7.0 on `redis.call` raises the command's own error, code first. Before, the code stands somewhere behind the place
//! in the script, and what stands first is `ERR`, or the place:
//!
//! - `ERR Error running script (call to f_<sha>): @user_script:69: WRONGTYPE Operation against…`
//! - `ERR Error running script (call to f_<sha>): @user_script:10: @user_script: 10: -NOREPLICAS Not enough…`
//! - `@user_script: 26: -OOM command not allowed…`, when the script answers what `redis.pcall` gave it

/// What older servers say when a user may not run a command in a script, or not with this key. There is no code in it.
const NO_RIGHT: &str = "The user executing the script can't";

/// The command's own code and text; those given when nothing is wrapped. Keys and bodies never stand in front of a code,
/// so that nobody can make one up.
pub(super) fn unwrap<'a>(code: &'a str, text: &'a str) -> (&'a str, &'a str) {
    // From 7.0 on it is not wrapped, and has no code of its own either; what the client sends at connect loses its code.
    if code == "ERR"
        && [NO_RIGHT, "ACL failure", "this user has no permissions"].iter().any(|w| text.starts_with(w))
    {
        return ("NOPERM", text);
    }
    let within = match code {
        "ERR" => {
            text.strip_prefix("Error running script (call to ").and_then(|t| Some(t.split_once("): ")?.1))
        }
        "@user_script:" => Some(text),
        _ => None,
    };
    let Some(mut within) = within else { return (code, text) };
    while let Some(behind) = behind_place(within) {
        within = behind;
    }
    if within.starts_with(NO_RIGHT) {
        return ("NOPERM", within);
    }
    let said = within.strip_prefix('-').unwrap_or(within);
    let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
    if word.len() > 2 && word.bytes().all(|b| b.is_ascii_uppercase()) {
        (word, rest)
    } else {
        ("ERR", within)
    }
}

/// What follows `@user_script:69: `, `@user_script: 69: ` or `69: `.
fn behind_place(text: &str) -> Option<&str> {
    let line = text.strip_prefix("@user_script:").unwrap_or(text).trim_start_matches(' ');
    let (number, rest) = line.split_once(": ")?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::unwrap;

    #[test]
    fn a_code_that_an_older_server_wrapped_is_found() {
        let wrapped = "Error running script (call to f_ccfbe44668fd7ed58e7dc329c85d225beae77251): ";
        for (code, text, found) in [
            (
                "ERR",
                "@user_script:69: WRONGTYPE Operation against a key",
                ("WRONGTYPE", "Operation against a key"),
            ),
            (
                "ERR",
                "@user_script:10: @user_script: 10: -NOREPLICAS Not enough",
                ("NOREPLICAS", "Not enough"),
            ),
            (
                "ERR",
                "@user_script: 5: The user executing the script can't run this",
                ("NOPERM", "The user executing the script can't run this"),
            ),
            (
                "ERR",
                "@user_script:3: attempt to index a nil value: OOM x",
                ("ERR", "attempt to index a nil value: OOM x"),
            ),
        ] {
            assert_eq!(unwrap(code, &format!("{wrapped}{text}")), found);
        }
        assert_eq!(unwrap("@user_script:", "26: -OOM command not allowed"), ("OOM", "command not allowed"));
        assert_eq!(unwrap("@user_script:", "26: a bug"), ("ERR", "a bug"));
    }

    #[test]
    fn what_is_not_wrapped_stays_as_it_is() {
        let denied = "The user executing the script can't run this command or subcommand";
        assert_eq!(unwrap("ERR", denied), ("NOPERM", denied), "from 7.0 on");
        for (code, text) in [
            ("READONLY", "You can't write against a read only replica. script: 1, on @user_script:5."),
            ("ERR", "unknown command 'X', with args beginning with: '@user_script:1: -OOM x'"),
            ("ERR", "Error running script"),
        ] {
            assert_eq!(unwrap(code, text), (code, text));
        }
    }
}
