//! What a server may answer instead of a result, and what we make of it: one table.
//!
//! `docs/errors.md` shows the same table; a test holds the two together, and the integration suite injects every row.

/// Whether a call that was refused is sent again by ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// At once, with the script's text.
    WithText,
    /// After a pause, until the operation's deadline: the server says that this will pass.
    UntilDeadline,
    /// Not by us; the caller is told.
    No,
}

/// One code: the first word of an error reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) again: Again,
    /// Repeating the call later may succeed, with nothing changed by the caller.
    pub(crate) retryable: bool,
    /// This connection leads to the wrong server, or as the wrong user: a new one may not.
    pub(crate) reconnect: bool,
    /// What a person can do.
    pub(crate) advice: &'static str,
}

const fn row(code: &'static str, again: Again, advice: &'static str) -> Refusal {
    Refusal { code, again, retryable: !matches!(again, Again::No), reconnect: false, advice }
}

/// It may end without anybody's help, but not soon enough to wait for it.
const fn lasting(code: &'static str, advice: &'static str) -> Refusal {
    Refusal { retryable: true, ..row(code, Again::No, advice) }
}

const fn elsewhere(of: Refusal) -> Refusal {
    Refusal { reconnect: true, ..of }
}

/// Every code with a meaning of its own. Any other one is returned and not retryable; its connection stays.
pub(crate) const REFUSALS: [Refusal; 25] = [
    row("NOSCRIPT", Again::WithText, "the server forgot the script, although its text was sent"),
    row("LOADING", Again::UntilDeadline, "the server reads its data from disk; wait"),
    elsewhere(row("READONLY", Again::UntilDeadline, "this server is a replica: connect to the primary")),
    elsewhere(row(
        "MASTERDOWN",
        Again::UntilDeadline,
        "this replica has lost its primary: connect to the primary",
    )),
    row("CLUSTERDOWN", Again::UntilDeadline, "the cluster does not serve all slots: look at CLUSTER INFO"),
    row("TRYAGAIN", Again::UntilDeadline, "a slot is moving between nodes; wait"),
    row("MOVED", Again::UntilDeadline, "the server is a cluster node"),
    row("ASK", Again::UntilDeadline, "the server is a cluster node, and a slot is moving"),
    lasting("OOM", "the server is full: raise maxmemory or let queues drain"),
    lasting("MISCONF", "the server cannot save its data: look at its disk and its log"),
    lasting("NOREPLICAS", "too few replicas are connected, see min-replicas-to-write"),
    lasting("BUSY", "a script of somebody blocks the server: see SCRIPT KILL"),
    lasting("UNKILLABLE", "a script that has written blocks the server: wait, or SHUTDOWN NOSAVE"),
    row("NOPERM", Again::No, "the ACL user lacks this right, see docs/protocol.md"),
    row("WRONGPASS", Again::No, "check user name and password"),
    elsewhere(row("NOAUTH", Again::No, "check user name and password")),
    row("CREDENTIALS", Again::No, "check what provides user name and password"),
    row("DENIED", Again::No, "the server is in protected mode: give it a password, or bind it to an address"),
    row("WRONGTYPE", Again::No, "a key under our prefix belongs to something else: choose another prefix"),
    row(
        "CROSSSLOT",
        Again::No,
        "keys of one call lie in several slots: is the prefix with braces of its own?",
    ),
    row("NOPROTO", Again::No, "the server does not speak RESP3: use Redis 6.2 or newer"),
    row("EXECABORT", Again::No, ""),
    row("MASTER", Again::No, "check the master's name in the URL and in the sentinels"),
    row("VERSION", Again::No, "use a newer server"),
    row("ERR", Again::No, ""),
];

/// What the table says of a code; of an unknown one that it is returned.
pub(crate) fn of(code: &str) -> Refusal {
    REFUSALS.iter().find(|r| r.code == code).copied().unwrap_or(row("", Again::No, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's table and this one, row by row.
    #[test]
    fn the_page_says_what_the_table_says() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors.md");
        let page = std::fs::read_to_string(page).expect("docs/errors.md");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .skip_while(|l| !l.starts_with("| code |"))
            .skip(2)
            .take_while(|l| l.starts_with('|'))
            .map(|l| l.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let codes: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
        assert_eq!(codes, REFUSALS.map(|r| r.code));
        for (row, refusal) in rows.iter().zip(REFUSALS) {
            let again = match refusal.again {
                Again::WithText => "sent again with its text",
                Again::UntilDeadline => "repeated",
                Again::No => "returned",
            };
            let retryable = if refusal.retryable { "yes" } else { "no" };
            let connection = if refusal.reconnect { "opened again" } else { "kept" };
            assert_eq!(row[2..], [again, retryable, connection], "{}", refusal.code);
        }
    }
}
