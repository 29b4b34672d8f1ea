//! Header, script and binding must say the same.
//!
//! A header names every key and argument; the script reads them by number; the binding passes them in order. This
//! test parses all three and fails on the first difference.

use std::collections::BTreeSet;
use std::path::Path;

use super::Script;

#[derive(Debug, Default)]
struct Header {
    purpose: String,
    uses: Vec<String>,
    keys: Vec<String>,
    keys_each: Vec<String>,
    args: Vec<String>,
    args_each: Vec<String>,
    replies: bool,
    errors: bool,
    cost: bool,
}

const SECTIONS: [&str; 4] = ["Uses", "Replies", "Errors", "Cost"];

/// `-- KEYS[3..] q dead  LIST  for each …`: the names are the words up to a run of two spaces.
fn names(rest: &str) -> Vec<String> {
    let rest = rest.trim_start();
    rest.split("  ").next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn header(name: &str, source: &str) -> Header {
    let mut h = Header::default();
    let lines: Vec<&str> = source.lines().take_while(|l| l.starts_with("--")).collect();
    let first = lines.first().unwrap_or(&"");
    h.purpose = first
        .strip_prefix(&format!("-- {name}: "))
        .unwrap_or_else(|| panic!("{name}: first line must be `-- {name}: purpose`"))
        .to_owned();
    for line in &lines {
        let text = line.trim_start_matches("--").trim_start();
        for (what, fixed, each) in
            [("KEYS", &mut h.keys, &mut h.keys_each), ("ARGV", &mut h.args, &mut h.args_each)]
        {
            let Some(rest) = text.strip_prefix(&format!("{what}[")) else { continue };
            let (index, rest) = rest.split_once(']').unwrap_or_else(|| panic!("{name}: {line}"));
            if let Some(from) = index.strip_suffix("..") {
                assert_eq!(from.parse::<usize>().ok(), Some(fixed.len() + 1), "{name}: {line}");
                *each = names(rest);
            } else {
                fixed.extend(names(rest).into_iter().take(1));
                assert_eq!(
                    index.parse::<usize>().ok(),
                    Some(fixed.len()),
                    "{name}: numbers must go up by one: {line}"
                );
            }
        }
        for section in SECTIONS {
            let Some(rest) = text.strip_prefix(&format!("{section} ")) else { continue };
            match section {
                "Uses" => {
                    let files =
                        rest.split(',').map(|f| f.trim().trim_start_matches("lib/").trim_end_matches(".lua"));
                    h.uses = files.map(str::to_owned).collect();
                }
                "Replies" => h.replies = true,
                "Errors" => h.errors = true,
                _ => h.cost = true,
            }
        }
    }
    h
}

/// Every `KEYS[…]` or `ARGV[…]` with a plain number, outside of comments.
fn numbers_read(code: &str, what: &str) -> BTreeSet<usize> {
    code.match_indices(&format!("{what}["))
        .filter_map(|(at, open)| code[at + open.len()..].split(']').next()?.trim().parse().ok())
        .collect()
}

fn lua_dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

fn own_text(script: &Script) -> String {
    std::fs::read_to_string(lua_dir().join(format!("{}.lua", script.name))).expect("the file of the script")
}

#[test]
fn header_code_and_binding_agree() {
    for script in super::all() {
        let text = own_text(script);
        let h = header(script.name, &text);
        assert!(!h.purpose.is_empty(), "{}", script.name);
        assert!(h.replies && h.errors && h.cost, "{}: header needs Replies, Errors and Cost", script.name);
        assert_eq!(h.keys, script.keys, "{}: keys of header and binding", script.name);
        assert_eq!(h.keys_each, script.keys_each, "{}: repeating keys", script.name);
        assert_eq!(h.args, script.args, "{}: arguments of header and binding", script.name);
        assert_eq!(h.args_each, script.args_each, "{}: repeating arguments", script.name);

        let code: String =
            text.lines().filter(|l| !l.trim_start().starts_with("--")).map(|l| format!("{l}\n")).collect();
        for (what, fixed) in [("KEYS", h.keys.len()), ("ARGV", h.args.len())] {
            let expected: BTreeSet<usize> = (1..=fixed).collect();
            assert_eq!(numbers_read(&code, what), expected, "{}: {what} read by the code", script.name);
        }
        for (what, each) in [("KEYS", &h.keys_each), ("ARGV", &h.args_each)] {
            let open = format!("{what}[");
            let computed = code.contains(&format!("ipairs({what})"))
                || code.split(&open).skip(1).any(|rest| {
                    rest.split(']').next().is_some_and(|index| index.trim().parse::<usize>().is_err())
                });
            assert_eq!(computed, !each.is_empty(), "{}: {what} in a loop and the header", script.name);
        }
    }
}

#[test]
fn the_text_that_is_sent_is_the_named_libraries_and_the_file() {
    for script in super::all() {
        let text = own_text(script);
        let mut expected = String::new();
        for lib in header(script.name, &text).uses {
            let file = lua_dir().join("lib").join(format!("{lib}.lua"));
            expected += &std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
        assert_eq!(
            script.source,
            expected + &text,
            "{}: Uses of the header and `uses` of the binding",
            script.name
        );
        assert_eq!(script.sha1(), sha1_smol::Sha1::from(script.source).hexdigest());
    }
}

#[test]
fn every_file_in_lua_has_a_binding_and_every_library_a_user() {
    let files = |dir: &Path| -> BTreeSet<String> {
        let entries = std::fs::read_dir(dir).expect("lua/").map(|e| e.expect("entry").path());
        let lua = entries.filter(|p| p.extension().is_some_and(|x| x == "lua"));
        lua.map(|p| p.file_stem().expect("name").to_string_lossy().into_owned()).collect()
    };
    let bound: BTreeSet<String> = super::all().iter().map(|s| s.name.to_owned()).collect();
    assert_eq!(files(&lua_dir()), bound);
    let used: BTreeSet<String> =
        super::all().iter().flat_map(|s| header(s.name, &own_text(s)).uses).collect();
    assert_eq!(files(&lua_dir().join("lib")), used);
}

#[test]
fn no_script_decodes_a_body_or_reaches_past_its_keys() {
    for script in super::all() {
        for forbidden in
            ["cjson", "cmsgpack", "redis.call('KEYS'", "redis.call('SCAN'", "os.time", "math.random"]
        {
            // It names keys of tasks, a bounded number of them, and opens none.
            let names_only = script.name == "task_scan" && forbidden == "redis.call('SCAN'";
            assert!(names_only || !script.source.contains(forbidden), "{} uses {forbidden}", script.name);
        }
        // An unpack without a bound overflows the stack: lib/some.lua has the bounded one.
        let allowed = usize::from(script.source.contains("local function pcall_some("));
        assert_eq!(script.source.matches("unpack(").count(), allowed, "{} uses unpack", script.name);
    }
}
