//! One connection's commands: those about the connection itself, scripts, and all others.

use super::commands::{self, check_arity};
use super::engine::Engine;
use super::pubsub::Outbox;
use super::resp::{Blob, Reply};
use super::store::{Fault, Outcome, Store};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a connection remembers between commands.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) outbox: Arc<Outbox>,
    /// Channels it listens to.
    pub(super) channels: BTreeSet<Blob>,
    resp3: bool,
    name: Blob,
}

/// Whether the connection goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It does.
    Stay,
    /// It ends when the replies are sent.
    Close,
}

impl Session {
    pub(super) fn new(id: u64, outbox: Arc<Outbox>) -> Self {
        Self { id, outbox, channels: BTreeSet::new(), resp3: false, name: Blob::from(&b""[..]) }
    }

    /// Runs one command and puts its replies into the outbox.
    pub(super) fn run(&mut self, engine: &mut Engine, request: &[&[u8]]) -> Next {
        let Some((name, args)) = request.split_first() else {
            return Next::Stay;
        };
        let upper = name.to_ascii_uppercase();
        // With RESP2 a message and a reply look alike, so a subscriber may not ask for replies.
        if !self.resp3
            && !self.channels.is_empty()
            && !matches!(&upper[..], b"SUBSCRIBE" | b"UNSUBSCRIBE" | b"PING" | b"QUIT")
        {
            let fault = Fault::new("ERR only (UN)SUBSCRIBE / PING / QUIT are allowed in this context");
            self.outbox.reply(&fault.reply());
            return Next::Stay;
        }
        let outcome = match &upper[..] {
            b"SUBSCRIBE" => self.subscribe(engine, args),
            b"UNSUBSCRIBE" => {
                self.unsubscribe(engine, args);
                return Next::Stay;
            }
            b"QUIT" => {
                self.outbox.reply(&Reply::ok());
                return Next::Close;
            }
            b"PING" if !self.resp3 && !self.channels.is_empty() && args.len() <= 1 => {
                let text = args.first().map_or(Reply::text(""), Reply::text);
                Ok(Some(Reply::Array(vec![Reply::text("pong"), text])))
            }
            b"HELLO" => self.hello(args).map(Some),
            b"CLIENT" => self.client(&engine.store(), args).map(Some),
            b"EVAL" => eval(engine, args).map(Some),
            b"EVALSHA" => evalsha(engine, args).map(Some),
            b"SCRIPT" => script(engine, args).map(Some),
            _ => commands::run(&mut engine.store(), request).unwrap_or_else(|| Err(unknown(name))).map(Some),
        };
        match outcome {
            Ok(Some(reply)) => self.outbox.reply(&reply),
            Ok(None) => {}
            Err(fault) => self.outbox.reply(&fault.reply()),
        }
        Next::Stay
    }

    fn subscribe(&mut self, engine: &mut Engine, args: &[&[u8]]) -> Result<Option<Reply>, Fault> {
        check_arity("SUBSCRIBE", -2, args.len() + 1)?;
        for channel in args {
            let channel = Blob::from(*channel);
            engine.store().channels.subscribe(self.id, &channel);
            self.channels.insert(channel.clone());
            self.confirm("subscribe", Reply::Bulk(channel));
        }
        Ok(None)
    }

    fn unsubscribe(&mut self, engine: &mut Engine, args: &[&[u8]]) {
        let all: Vec<Blob> = self.channels.iter().cloned().collect();
        if args.is_empty() && all.is_empty() {
            self.confirm("unsubscribe", Reply::Nil);
        }
        let named: Vec<Blob> =
            if args.is_empty() { all } else { args.iter().map(|name| Blob::from(*name)).collect() };
        for channel in named {
            engine.store().channels.unsubscribe(self.id, &channel);
            self.channels.remove(&channel);
            self.confirm("unsubscribe", Reply::Bulk(channel));
        }
    }

    fn confirm(&self, what: &str, channel: Reply) {
        self.outbox.reply(&Reply::Push(vec![Reply::text(what), channel, Reply::count(self.channels.len())]));
    }

    fn hello(&mut self, args: &[&[u8]]) -> Outcome {
        let mut resp3 = self.resp3;
        let mut rest = args;
        if let [version, tail @ ..] = args {
            resp3 = match *version {
                b"2" => false,
                b"3" => true,
                other if super::number::parse_int(other).is_some() => {
                    return Err(Fault::new("NOPROTO unsupported protocol version"));
                }
                _ => return Err(Fault::new("ERR Protocol version is not an integer or out of range")),
            };
            rest = tail;
        }
        while !rest.is_empty() {
            rest = match rest {
                // There are no users to tell apart: whoever has the process has the engine.
                [word, _, _, tail @ ..] if word.eq_ignore_ascii_case(b"AUTH") => tail,
                [word, name, tail @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                    self.name = Blob::from(*name);
                    tail
                }
                _ => return Err(Fault::new("ERR Syntax error in HELLO option")),
            };
        }
        self.resp3 = resp3;
        self.outbox.speak(resp3);
        let fields = [
            ("server", Reply::text("redis")),
            ("version", Reply::text(commands::VERSION)),
            ("proto", Reply::Int(if resp3 { 3 } else { 2 })),
            ("id", Reply::Int(self.id as i64)),
            ("mode", Reply::text("standalone")),
            ("role", Reply::text("master")),
            ("modules", Reply::Array(Vec::new())),
        ];
        Ok(Reply::Map(fields.into_iter().map(|(name, value)| (Reply::text(name), value)).collect()))
    }

    fn client(&mut self, store: &Store, args: &[&[u8]]) -> Outcome {
        let words: Vec<Vec<u8>> = args.iter().map(|word| word.to_ascii_uppercase()).collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match &words[..] {
            [b"ID"] => Ok(Reply::Int(self.id as i64)),
            [b"GETNAME"] => Ok(Reply::maybe(Some(self.name.clone()).filter(|name| !name.is_empty()))),
            [b"SETNAME", _] => {
                self.name = Blob::from(args[1]);
                Ok(Reply::ok())
            }
            [b"SETINFO", b"LIB-NAME" | b"LIB-VER", _] => Ok(Reply::ok()),
            [b"KILL", b"TYPE", kind @ (b"NORMAL" | b"PUBSUB"), options @ ..] => {
                let spare = match options {
                    [] | [b"SKIPME", b"YES"] => Some(self.id),
                    [b"SKIPME", b"NO"] => None,
                    _ => return Err(Fault::SYNTAX),
                };
                let subscribers = *kind == b"PUBSUB";
                let killed =
                    store.channels.kill(|id, subscribed| subscribed == subscribers && Some(id) != spare);
                Ok(Reply::count(killed))
            }
            [b"KILL", ..] => Err(Fault::SYNTAX),
            _ => Err(Fault::new("ERR unknown subcommand or wrong number of arguments for 'client'")),
        }
    }
}

fn unknown(name: &[u8]) -> Fault {
    let shown = String::from_utf8_lossy(&name[..name.len().min(128)]);
    Fault::new(format!("ERR unknown command '{shown}'"))
}

fn eval(engine: &mut Engine, args: &[&[u8]]) -> Outcome {
    check_arity("EVAL", -3, args.len() + 1)?;
    let sha = engine.scripts.load(args[0])?;
    engine.scripts.run(sha.as_bytes(), &args[1..])
}

fn evalsha(engine: &mut Engine, args: &[&[u8]]) -> Outcome {
    check_arity("EVALSHA", -3, args.len() + 1)?;
    engine.scripts.run(args[0], &args[1..])
}

fn script(engine: &mut Engine, args: &[&[u8]]) -> Outcome {
    let word = args.first().map(|word| word.to_ascii_uppercase());
    match (word.as_deref(), args) {
        (Some(b"LOAD"), [_, source]) => engine.scripts.load(source).map(Reply::text),
        (Some(b"EXISTS"), [_, shas @ ..]) if !shas.is_empty() => {
            Ok(Reply::Array(shas.iter().map(|sha| Reply::Int(engine.scripts.knows(sha).into())).collect()))
        }
        (Some(b"FLUSH"), [_]) => {
            engine.scripts.flush();
            Ok(Reply::ok())
        }
        (Some(b"FLUSH"), [_, mode])
            if mode.eq_ignore_ascii_case(b"SYNC") || mode.eq_ignore_ascii_case(b"ASYNC") =>
        {
            engine.scripts.flush();
            Ok(Reply::ok())
        }
        _ => Err(Fault::new("ERR unknown subcommand or wrong number of arguments for 'script'")),
    }
}
