//! Scripts: Lua 5.1 with the conversions of Redis.

use super::commands;
use super::number::format_double;
use super::resp::{Blob, Reply};
use super::store::{Fault, Outcome, Store};
use mlua::chunk::ChunkMode;
use mlua::{Function, HookTriggers, Lua, LuaOptions, LuaString, StdLib, Table, Value, Variadic, VmState};
use sha1_smol::Sha1;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Instructions between two looks at a script's budget.
const SLICE: u32 = 1_000_000;
/// Slices a script may use: about 50 million instructions. Redis would answer BUSY to the others instead; here it would
/// hold a thread of the caller's runtime.
const BUDGET: u32 = 50;
/// Deepest nesting of a script's reply.
const MAX_DEPTH: usize = 200;

/// The Lua side of an engine.
pub(super) struct Scripts {
    lua: Lua,
    globals: Table,
    runner: Function,
    compiled: HashMap<String, Function>,
    slices: Arc<AtomicU32>,
}

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripts").field("compiled", &self.compiled.len()).finish_non_exhaustive()
    }
}

/// Locks the store; a panic elsewhere does not make it unusable, since commands change it in single steps.
pub(super) fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scripts {
    /// A Lua state whose `redis.call` works on `store`.
    pub(super) fn new(store: Arc<Mutex<Store>>) -> mlua::Result<Self> {
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, options)?;
        let command = lua.create_function(move |lua, args: Variadic<Value>| call(lua, &store, &args))?;
        let sha1hex =
            lua.create_function(|_, text: LuaString| Ok(Sha1::from(text.as_bytes()).hexdigest()))?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("@prelude").set_mode(ChunkMode::Text);
        let (globals, environment, runner): (Table, Table, Function) = prelude.call((command, sha1hex))?;
        lua.set_globals(environment)?;
        let slices = Arc::new(AtomicU32::new(0));
        watch(&lua, &slices)?;
        Ok(Self { lua, globals, runner, compiled: HashMap::new(), slices })
    }

    /// Compiles a script once and gives its SHA1.
    pub(super) fn load(&mut self, source: &[u8]) -> Result<String, Fault> {
        let sha = Sha1::from(source).hexdigest();
        if !self.compiled.contains_key(&sha) {
            let chunk = self.lua.load(source).set_name("@user_script").set_mode(ChunkMode::Text);
            let function = chunk
                .into_function()
                .map_err(|error| Fault::new(format!("ERR Error compiling script (new function): {error}")))?;
            self.compiled.insert(sha.clone(), function);
        }
        Ok(sha)
    }

    /// Whether a script is there.
    pub(super) fn knows(&self, sha: &[u8]) -> bool {
        self.find(sha).is_some()
    }

    /// Forgets all scripts.
    pub(super) fn flush(&mut self) {
        self.compiled.clear();
    }

    fn find(&self, sha: &[u8]) -> Option<&Function> {
        let sha = std::str::from_utf8(sha).ok()?;
        self.compiled.get(sha).or_else(|| self.compiled.get(&sha.to_ascii_lowercase()))
    }

    /// Runs a script with its number of keys, its keys and its arguments.
    pub(super) fn run(&self, sha: &[u8], args: &[&[u8]]) -> Outcome {
        let (count, rest) = args.split_first().ok_or(Fault::SYNTAX)?;
        let count = super::number::parse_int(count).ok_or(Fault::NOT_INTEGER)?;
        let count = usize::try_from(count).map_err(|_| Fault::new("ERR Number of keys can't be negative"))?;
        if count > rest.len() {
            return Err(Fault::new("ERR Number of keys can't be greater than number of args"));
        }
        let function = self.find(sha).ok_or(Fault::new("NOSCRIPT No matching script. Please use EVAL."))?;
        let (keys, argv) = rest.split_at(count);
        if self.slices.swap(0, Ordering::Relaxed) > BUDGET {
            watch(&self.lua, &self.slices).map_err(|error| Fault::new(format!("ERR {error}")))?;
        }
        let outcome = self.strings(keys).and_then(|keys| {
            self.globals.raw_set("KEYS", keys)?;
            self.globals.raw_set("ARGV", self.strings(argv)?)?;
            self.runner.call::<(bool, Value)>(function)
        });
        match outcome {
            Ok((true, value)) => Ok(to_reply(&value, 0)),
            Ok((false, error)) => Err(raised(&error)),
            Err(error) => Err(Fault::new(format!("ERR {error}"))),
        }
    }

    fn strings(&self, items: &[&[u8]]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(items.len(), 0)?;
        for item in items {
            table.raw_push(self.lua.create_string(item)?)?;
        }
        Ok(table)
    }
}

/// Lets the scripts run for [`BUDGET`] slices each.
fn watch(lua: &Lua, slices: &Arc<AtomicU32>) -> mlua::Result<()> {
    let used = slices.clone();
    lua.set_hook(HookTriggers::new().every_nth_instruction(SLICE), move |lua, _| {
        if used.fetch_add(1, Ordering::Relaxed) < BUDGET {
            return Ok(VmState::Continue);
        }
        // From here on every instruction fails, so that no pcall of the script's can carry on.
        lua.set_hook(HookTriggers::new().every_nth_instruction(1), |_, _| Err(exhausted()))?;
        Err(exhausted())
    })
}

fn exhausted() -> mlua::Error {
    mlua::Error::RuntimeError("script used too many instructions".to_owned())
}

/// What a script raised, as the reply to its caller.
fn raised(error: &Value) -> Fault {
    let text = match error {
        Value::Table(table) => match table.raw_get::<Value>("err") {
            Ok(Value::String(text)) => return Fault::new(text.to_string_lossy()),
            _ => "unknown error".to_owned(),
        },
        Value::String(text) => text.to_string_lossy(),
        Value::Error(error) => error.to_string(),
        _ => "unknown error".to_owned(),
    };
    Fault::new(format!("ERR {text}"))
}

/// `redis.call` and `redis.pcall` without the raising: an error is a table with the field `err`.
fn call(lua: &Lua, store: &Mutex<Store>, args: &[Value]) -> mlua::Result<Value> {
    let mut owned = Vec::with_capacity(args.len());
    for arg in args {
        owned.push(match arg {
            Value::String(text) => Arg::Text(text.as_bytes()),
            Value::Integer(n) if n.unsigned_abs() < 1 << 53 => Arg::Number(n.to_string()),
            Value::Integer(n) => Arg::Number(format_double(*n as f64)),
            Value::Number(n) => Arg::Number(format_double(*n)),
            _ => {
                let text = "ERR Lua redis lib command arguments must be strings or integers";
                return to_lua(lua, &Fault::new(text).reply());
            }
        });
    }
    let request: Vec<&[u8]> = owned.iter().map(Arg::bytes).collect();
    let reply = if request.is_empty() {
        Fault::new("ERR Please specify at least one argument for this redis.call").reply()
    } else {
        match commands::run(&mut lock(store), &request) {
            Some(outcome) => outcome.unwrap_or_else(|fault| fault.reply()),
            None => Fault::new("ERR Unknown Redis command called from script").reply(),
        }
    };
    to_lua(lua, &reply)
}

enum Arg {
    Text(mlua::BorrowedBytes),
    Number(String),
}

impl Arg {
    fn bytes(&self) -> &[u8] {
        match self {
            Arg::Text(text) => text,
            Arg::Number(text) => text.as_bytes(),
        }
    }
}

/// A command's reply as a script sees it: RESP2 shapes, no value is `false`.
fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let string = |bytes: &[u8]| lua.create_string(bytes).map(Value::String);
    Ok(match reply {
        Reply::Int(n) => Value::Number(*n as f64),
        Reply::Bulk(bytes) => string(bytes)?,
        Reply::Verbatim(text) => string(text.as_bytes())?,
        Reply::Double(n) => string(format_double(*n).as_bytes())?,
        Reply::Nil | Reply::NilArray => Value::Boolean(false),
        Reply::Status(text) => single(lua, "ok", text)?,
        Reply::Error(text) => single(lua, "err", text)?,
        Reply::Array(items) | Reply::Push(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
        Reply::Map(pairs) => {
            let table = lua.create_table_with_capacity(pairs.len() * 2, 0)?;
            for (key, value) in pairs {
                table.raw_push(to_lua(lua, key)?)?;
                table.raw_push(to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
        Reply::Scored(pairs) => {
            let table = lua.create_table_with_capacity(pairs.len() * 2, 0)?;
            for (member, score) in pairs {
                table.raw_push(lua.create_string(member)?)?;
                table.raw_push(format_double(*score))?;
            }
            Value::Table(table)
        }
    })
}

fn single(lua: &Lua, field: &str, text: &[u8]) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set(field, lua.create_string(text)?)?;
    Ok(Value::Table(table))
}

/// A script's result as a reply: numbers lose their fraction, `false` is no value, an array ends at the first nil.
fn to_reply(value: &Value, depth: usize) -> Reply {
    match value {
        Value::String(text) => Reply::text(text.as_bytes()),
        Value::Integer(n) => Reply::Int(*n),
        Value::Number(n) => Reply::Int(truncate(*n)),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(_) if depth >= MAX_DEPTH => Fault::new("ERR reached lua stack limit").reply(),
        Value::Table(table) => {
            let field = |name| match table.raw_get::<Value>(name) {
                Ok(Value::String(text)) => Some(Blob::from(&*text.as_bytes())),
                _ => None,
            };
            if let Some(text) = field("err") {
                return Reply::Error(text);
            }
            if let Some(text) = field("ok") {
                return Reply::Status(text);
            }
            let mut items = Vec::with_capacity(table.raw_len());
            for at in 1.. {
                match table.raw_get::<Value>(at) {
                    Ok(Value::Nil) | Err(_) => break,
                    Ok(item) => items.push(to_reply(&item, depth + 1)),
                }
            }
            Reply::Array(items)
        }
        _ => Reply::Nil,
    }
}

/// C's conversion on the machines Redis runs on: what does not fit becomes the smallest integer.
fn truncate(n: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&n) { n as i64 } else { i64::MIN }
}
