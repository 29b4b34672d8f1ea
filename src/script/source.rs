//! A script's text, its SHA-1, and a call of it.

use std::sync::LazyLock;

/// A named script. `keys` and `args` say what the binding passes, as the header of the script says it.
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    /// Names of the fixed keys.
    pub(crate) keys: &'static [&'static str],
    /// Names of the keys that repeat for each session.
    pub(crate) keys_each: &'static [&'static str],
    /// Names of the fixed arguments.
    pub(crate) args: &'static [&'static str],
    /// Names of the arguments that repeat for each session.
    pub(crate) args_each: &'static [&'static str],
    sha1: LazyLock<String>,
}

impl Script {
    pub(crate) const fn new(
        name: &'static str,
        source: &'static str,
        (keys, keys_each): (&'static [&'static str], &'static [&'static str]),
        (args, args_each): (&'static [&'static str], &'static [&'static str]),
        sha1: fn() -> String,
    ) -> Self {
        Self { name, source, keys, keys_each, args, args_each, sha1: LazyLock::new(sha1) }
    }

    /// The digest that EVALSHA wants, computed once.
    pub(crate) fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// Declares a script: its file, the shared lines in front of it, and the names of what the binding passes.
macro_rules! script {
    ($vis:vis static $name:ident = $file:literal, uses [$($lib:literal),*],
     keys [$($key:literal),*] each [$($key_each:literal),*],
     args [$($arg:literal),*] each [$($arg_each:literal),*]) => {
        $vis static $name: $crate::script::Script = $crate::script::Script::new(
            $file,
            concat!(
                $(include_str!(concat!("../../lua/lib/", $lib, ".lua")),)*
                include_str!(concat!("../../lua/", $file, ".lua"))
            ),
            (&[$($key),*], &[$($key_each),*]),
            (&[$($arg),*], &[$($arg_each),*]),
            || sha1_smol::Sha1::from($name.source).hexdigest(),
        );
    };
}
pub(crate) use script;

/// Byte strings, one behind the other in a single buffer.
#[derive(Default)]
struct Parts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Parts {
    fn push(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

/// One call: the script with its keys and arguments, in any order of adding them.
pub(crate) struct Invocation {
    pub(crate) script: &'static Script,
    keys: Parts,
    args: Parts,
}

impl Invocation {
    pub(crate) fn new(script: &'static Script) -> Self {
        Self { script, keys: Parts::default(), args: Parts::default() }
    }

    pub(crate) fn key(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.keys.push(key.as_ref());
        self
    }

    pub(crate) fn arg(&mut self, arg: impl AsRef<[u8]>) -> &mut Self {
        self.args.push(arg.as_ref());
        self
    }

    pub(crate) fn num(&mut self, arg: impl Into<u64>) -> &mut Self {
        use std::io::Write as _;
        let _ = write!(self.args.bytes, "{}", arg.into()); // Writing to memory does not fail.
        self.args.ends.push(self.args.bytes.len());
        self
    }

    /// Whether as much is passed as the binding declares: repeating groups whole, and as many of keys as of arguments.
    fn is_complete(&self) -> bool {
        let s = self.script;
        let keys = self.keys.ends.len().checked_sub(s.keys.len());
        let args = self.args.ends.len().checked_sub(s.args.len());
        let groups = |extra: usize, each: &[&str]| {
            if each.is_empty() { extra == 0 } else { extra.is_multiple_of(each.len()) }
        };
        let counted = s.args_each.iter().any(|name| name.contains('*'));
        keys.is_some_and(|k| groups(k, s.keys_each))
            && args.is_some_and(|a| counted || groups(a, s.args_each))
    }

    /// EVALSHA by the digest, or EVAL with the text for a server that does not have it.
    pub(crate) fn command(&self, with_text: bool) -> redis::Cmd {
        debug_assert!(
            self.is_complete(),
            "{} is called with other counts than its header says",
            self.script.name
        );
        let (keys, args) = (&self.keys, &self.args);
        let text = if with_text { self.script.source } else { self.script.sha1() };
        let size = keys.bytes.len() + args.bytes.len() + text.len() + 16;
        let mut cmd = redis::Cmd::with_capacity(keys.ends.len() + args.ends.len() + 3, size);
        cmd.arg(if with_text { "EVAL" } else { "EVALSHA" }).arg(text).arg(keys.ends.len());
        for part in keys.iter().chain(args.iter()) {
            cmd.arg(part);
        }
        cmd
    }
}
