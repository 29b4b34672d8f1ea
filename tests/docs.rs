//! What the pages say about the repository is true: tests, files, scripts, rights, defaults, commands, links.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const PAGES: &[&str] = &[
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/delivery.md",
    "docs/elicitation.md",
    "docs/errors.md",
    "docs/failures.md",
    "docs/operating.md",
    "docs/mcp.md",
    "docs/performance.md",
    "docs/performance/results.md",
    "docs/protocol.md",
    "docs/states.md",
    "docs/tasks.md",
    "lua/README.md",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names in a folder that are not hidden, unless named here, and not ignored.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let ignored: BTreeSet<String> =
        read(".gitignore").lines().map(|l| l.trim_matches('/').to_owned()).collect();
    let listed = std::fs::read_dir(root().join(folder)).expect("a folder");
    let names = listed.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut kept: Vec<PathBuf> = names
        .filter(|n| (!n.starts_with('.') || matches!(&**n, ".ci" | ".github")) && !ignored.contains(n))
        .map(|n| folder.join(n))
        .collect();
    kept.sort();
    kept
}

fn is_dir(path: &Path) -> bool {
    root().join(path).is_dir()
}

/// The blocks of one language in a page.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    page.split(&fence[..]).skip(1).filter_map(|b| Some(b.split_once("\n```")?.0.to_owned())).collect()
}

/// What stands between backticks, outside of blocks.
fn code_words(page: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if !inside {
            words.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    words
}

#[test]
fn every_named_test_exists() {
    let mut named = 0;
    for page in PAGES.iter().copied() {
        for word in code_words(&read(page)) {
            let Some((module, test)) = word.rsplit_once("::") else { continue };
            let module = module.replace("::", "/");
            let name = |s: &str| {
                s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'/'))
            };
            // A path into the library is no test.
            if module.is_empty() || !name(&module) || !name(test) || module.starts_with("mcp_courier") {
                continue;
            }
            let file = format!("tests/it/{module}.rs");
            assert!(root().join(&file).is_file(), "{page} names {word}, but there is no {file}");
            assert!(
                read(&file).contains(&format!("fn {test}(")),
                "{page} names {word}, which is not in {file}"
            );
            named += 1;
        }
    }
    assert!(named > 20, "only {named} tests are named");
}

#[test]
fn every_row_of_promises_names_a_test() {
    for page in ["docs/delivery.md", "docs/elicitation.md"] {
        let text = read(page);
        let rows: Vec<&str> = text
            .lines()
            .skip_while(|l| !l.starts_with("| promise | test |"))
            .skip(2)
            .take_while(|l| l.starts_with('|'))
            .collect();
        assert!(rows.len() > 20, "{page}");
        for row in rows {
            assert!(row.contains("::"), "{page}: a promise without a test: {row}");
        }
    }
}

#[test]
fn the_folder_map_is_the_tree() {
    let page = read("CONTRIBUTING.md");
    let map = blocks(&page, "text").into_iter().next().expect("a map");
    let mapped: BTreeSet<String> =
        map.lines().filter_map(|l| l.split_whitespace().next()).map(str::to_owned).collect();
    for path in &mapped {
        let real = root().join(path);
        let there = if path.ends_with('/') { real.is_dir() } else { real.is_file() };
        assert!(there, "CONTRIBUTING.md maps {path}, which is not there");
    }
    let known = |path: &Path| {
        let name = format!("{}/", path.display());
        mapped.iter().any(|m| m.starts_with(&name))
    };
    for top in entries(Path::new("")).into_iter().filter(|p| is_dir(p)) {
        assert!(known(&top), "CONTRIBUTING.md does not map {}/", top.display());
        for below in entries(&top).into_iter().filter(|p| is_dir(p)) {
            assert!(known(&below), "CONTRIBUTING.md does not map {}/", below.display());
        }
    }
    for file in entries(Path::new("src")).into_iter().filter(|p| !is_dir(p)) {
        let name = file.display().to_string();
        assert!(mapped.contains(&name), "CONTRIBUTING.md does not map {name}");
    }
}

#[test]
fn the_tables_of_scripts_are_the_files() {
    let page = read("lua/README.md");
    let listed: BTreeSet<String> = page
        .lines()
        .filter_map(|l| l.strip_prefix("| ["))
        .filter_map(|l| Some(l.split_once(']')?.0.to_owned()))
        .collect();
    let lua = |folder: &str| {
        let files = entries(Path::new(folder)).into_iter();
        files.filter(|p| p.extension().is_some_and(|x| x == "lua")).collect::<Vec<_>>()
    };
    let files: BTreeSet<String> = lua("lua")
        .into_iter()
        .chain(lua("lua/lib"))
        .map(|p| p.strip_prefix("lua").expect("below lua").display().to_string())
        .collect();
    assert_eq!(listed, files);
    let protocol = read("docs/protocol.md");
    for file in files.iter().filter(|f| !f.starts_with("lib/")) {
        assert!(protocol.contains(&format!("(../lua/{file})")), "docs/protocol.md does not list {file}");
    }
}

/// The commands that the scripts call, and those of the client, are the rights in the page: none missing, none extra.
#[test]
fn the_listed_rights_are_the_commands_in_use() {
    let page = read("docs/protocol.md");
    let (_, rest) = page.split_once("<!-- test: acl -->").expect("the list");
    let listed: BTreeSet<String> = blocks(rest, "text")[0]
        .split_whitespace()
        .filter_map(|w| w.strip_prefix('+'))
        .map(str::to_owned)
        .collect();
    let client = ["evalsha", "eval", "subscribe", "info", "select", "hello", "client|setinfo", "publish"];
    let mut used: BTreeSet<String> = client.iter().map(|c| (*c).to_owned()).collect();
    for folder in ["lua", "lua/lib"] {
        for file in entries(Path::new(folder)).iter().filter(|p| p.extension().is_some_and(|x| x == "lua")) {
            let text = read(file);
            for call in text.split("call('").skip(1).chain(text.split("call_some('").skip(1)) {
                used.extend(call.split_once('\'').map(|(command, _)| command.to_lowercase()));
            }
        }
    }
    assert_eq!(listed, used);
}

/// `docs/failures.md` repeats defaults that the builder's comments state.
#[test]
fn the_listed_defaults_are_the_builders() {
    let builder = read("src/builder.rs");
    let page = read("docs/failures.md");
    let rows: Vec<&str> = page
        .lines()
        .skip_while(|l| !l.starts_with("| setting | default |"))
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .collect();
    assert!(rows.len() >= 8);
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, default) = (cells[1].trim_matches('`'), cells[2]);
        let (before, _) =
            builder.split_once(&format!("\n        {name}: ")).unwrap_or_else(|| panic!("no setting {name}"));
        let comment: Vec<&str> =
            before.lines().rev().take_while(|l| l.trim_start().starts_with("///")).collect();
        assert!(
            comment.iter().any(|l| l.contains(&format!("default {default}"))),
            "{name}: the builder does not say `default {default}`: {comment:?}"
        );
    }
}

#[test]
fn the_features_are_those_of_the_manifest() {
    let manifest = read("Cargo.toml");
    let (_, rest) = manifest.split_once("[features]\n").expect("features");
    let features: BTreeSet<&str> = rest
        .lines()
        .take_while(|l| !l.starts_with('['))
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| Some(l.split_once(" = ")?.0))
        .filter(|f| *f != "default")
        .collect();
    let readme = read("README.md");
    let listed: BTreeSet<&str> = readme
        .lines()
        .skip_while(|l| !l.starts_with("| feature |"))
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .filter_map(|l| l.split('`').nth(1))
        .collect();
    assert_eq!(listed, features);
    let version = manifest.lines().find_map(|l| l.strip_prefix("rust-version = ")).expect("one");
    assert!(readme.contains(&format!("Minimum Rust version: {}", version.trim_matches('"'))));
}

/// Links to files lead to files, links to headings to headings.
#[test]
fn links_lead_somewhere() {
    for page in PAGES.iter().copied() {
        let folder = Path::new(page).parent().expect("a folder");
        let text = read(page);
        for link in text.split("](").skip(1).filter_map(|l| Some(l.split_once(')')?.0)) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root().join(page) } else { root().join(folder).join(file) };
            assert!(target.exists(), "{page}: {link}");
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&target).expect("a page");
                assert!(headings(&text).contains(heading), "{page}: no heading for {link}");
            }
        }
    }
}

/// Headings as links name them.
fn headings(page: &str) -> BTreeSet<String> {
    let kept = |c: char| c.is_alphanumeric() || c == '-' || c == '_' || c == ' ';
    page.lines()
        .filter(|l| l.starts_with('#'))
        .map(|l| l.trim_start_matches('#').trim().to_lowercase())
        .map(|l| l.chars().filter(|c| kept(*c)).map(|c| if c == ' ' { '-' } else { c }).collect())
        .collect()
}

/// The lines of shell blocks that begin with a command.
fn commands(command: &str) -> Vec<(&'static str, Vec<String>)> {
    let mut found = Vec::new();
    for page in PAGES.iter().copied() {
        for block in blocks(&read(page), "sh") {
            for line in block.lines().filter_map(|l| l.strip_prefix(&format!("{command} "))) {
                found.push((page, line.split_whitespace().map(str::to_owned).collect()));
            }
        }
    }
    found
}

#[test]
fn every_cargo_line_names_what_there_is() {
    let manifest = read("Cargo.toml");
    let lines = commands("cargo");
    assert!(!lines.is_empty());
    for (page, words) in lines {
        assert!(
            matches!(&*words[0], "run" | "test" | "install" | "bench" | "doc" | "build"),
            "{page}: cargo {words:?}"
        );
        for pair in words.windows(2) {
            match &*pair[0] {
                "--features" => {
                    for feature in pair[1].split(',') {
                        assert!(manifest.contains(&format!("\n{feature} = [")), "{page}: feature {feature}");
                    }
                }
                "--example" => {
                    let file = format!("examples/{}.rs", pair[1]);
                    assert!(root().join(&file).is_file(), "{page}: {file}");
                }
                "--bench" => assert!(root().join(format!("benches/{}.rs", pair[1])).is_file(), "{page}"),
                _ => {}
            }
        }
    }
}

/// Every subcommand and option of a `mcp-courier` line stands in `--help`.
#[cfg(feature = "cli")]
#[test]
fn every_command_line_is_understood() {
    let Some(program) = option_env!("CARGO_BIN_EXE_mcp-courier") else {
        eprintln!("skipped: there is no command `mcp-courier`");
        return;
    };
    let help = |words: &[&str]| {
        let out = std::process::Command::new(program).args(words).arg("--help").output().expect("it runs");
        assert!(out.status.success(), "{words:?} --help: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let after_dashes = commands("cargo").into_iter().filter_map(|(page, words)| {
        let at = words.iter().position(|w| w == "--")?;
        (words[0] == "run" && !words[..at].contains(&"--example".to_owned()))
            .then(|| (page, words[at + 1..].to_vec()))
    });
    for (page, words) in commands("mcp-courier").into_iter().chain(after_dashes) {
        let mut path = vec![&*words[0]];
        if matches!(&*words[0], "dead" | "bridge" | "tasks") {
            path.push(&*words[1]);
        }
        let text = help(&path);
        for option in words.iter().filter(|w| w.starts_with("--")) {
            let known = text.split(|c: char| c.is_whitespace() || c == ',' || c == '=').any(|w| w == option);
            assert!(known, "{page}: {option} is not an option of {path:?}");
        }
    }
}
