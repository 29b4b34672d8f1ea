//! Exit codes, stderr, stdout.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use mcp_courier::Error;
use serde::Serialize;
use serde_json::value::RawValue;

/// It was not done.
pub const FAILED: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// No server, or it refused the connection.
pub const NO_SERVER: u8 = 3;

/// Why the command ends early.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl Failure {
    pub fn usage(why: impl Into<String>) -> Self {
        Self { code: USAGE, why: why.into() }
    }

    pub fn failed(why: impl Into<String>) -> Self {
        Self { code: FAILED, why: why.into() }
    }

    pub fn no_server(why: impl Into<String>) -> Self {
        Self { code: NO_SERVER, why: why.into() }
    }

    pub fn report(self) -> ExitCode {
        if !self.why.is_empty() {
            eprintln!("mcp-courier: {}", self.why);
        }
        ExitCode::from(self.code)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let code = match &e {
            Error::Invalid { .. } | Error::TooLarge { .. } => USAGE,
            Error::Unreachable { .. }
            | Error::Timeout { .. }
            | Error::Refused { op: "connect" | "subscribe", .. } => NO_SERVER,
            // The first script that a connection runs shows what it may not do.
            Error::Refused { code, .. } if code == "NOPERM" || code == "NOAUTH" => NO_SERVER,
            _ => FAILED,
        };
        Self { code, why: e.to_string() }
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        // Whoever read our stdout has gone: a quiet end.
        if e.kind() == io::ErrorKind::BrokenPipe {
            return Self { code: 0, why: String::new() };
        }
        Self { code: FAILED, why: e.to_string() }
    }
}

/// A time for people: in milliseconds up to ten seconds, then in days, hours, minutes, seconds.
pub fn time(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms}ms"),
        _ => humantime::format_duration(Duration::from_secs(ms / 1000)).to_string().replace(' ', ""),
    }
}

/// One line on stdout, flushed.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// One JSON object on a line of stdout, flushed.
pub fn json(value: &impl Serialize) -> io::Result<()> {
    line(&serde_json::to_string(value).map_err(io::Error::other)?)
}

/// A JSON object on one line, `head` with the body as its last member: in `notification` with its own bytes, not parsed
/// into a value and written again; in `body_base64` when it is not JSON.
pub fn with_body(head: &impl Serialize, body: &[u8]) -> String {
    let mut line = serde_json::to_string(head).unwrap_or_default();
    line.pop();
    // White space between tokens is the only place of a line break in JSON.
    let text = std::str::from_utf8(body).ok().map(|text| text.replace(['\n', '\r'], " "));
    match text.and_then(|text| RawValue::from_string(text.trim().to_owned()).ok()) {
        Some(raw) => line + &format!(",\"notification\":{raw}}}"),
        None => {
            line + &format!(
                ",\"body_base64\":\"{}\"}}",
                base64::engine::general_purpose::STANDARD.encode(body)
            )
        }
    }
}

/// Logs go to stderr: what is wrong, and more when asked for.
pub fn log(verbose: u8, faults_on_purpose: bool) {
    let default = match verbose {
        0 if faults_on_purpose => "mcp_courier=error",
        0 => "mcp_courier=warn",
        1 => "mcp_courier=info",
        _ => "mcp_courier=debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}
