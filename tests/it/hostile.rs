//! A server that answers nonsense: any reply of any shape, and doorbells of its own making. Nothing panics, nothing
//! hangs, nothing is delivered that was not sent for the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::{Courier, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::fixture::{Recorder, push, session};
use crate::support::resp::frame_len;

/// Random numbers from `TEST_SEED`, or from a seed that is printed.
fn seed() -> u64 {
    let given = std::env::var("TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed = given.unwrap_or_else(names_seed);
    println!("TEST_SEED={seed}");
    seed
}

fn names_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// A small generator: xorshift.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.roll(of.len() as u64) as usize]
    }
}

/// Words that mean something in some reply, numbers at the edges, bytes that are no record.
const WORDS: [&str; 24] = [
    "ok",
    "more",
    "fenced",
    "lost",
    "error",
    "queued",
    "coalesced",
    "duplicate",
    "full",
    "claimed",
    "released",
    "held",
    "requeued",
    "dead",
    "expired",
    "unknown",
    "",
    "other",
    "other 1 1 1 0 0 1 0 0 0 0\nxforeign",
    "1 2 3",
    "2 later\nformat",
    "1 1 99999999999999 0 0 999 0 0 0 0\nshort",
    "@name",
    "\u{0}\u{1}\r\n",
];
const NUMBERS: [&str; 8] = ["0", "1", "-1", "7", "600", "9223372036854775807", "-9223372036854775808", "42"];

fn value(dice: &mut Dice, depth: u8) -> String {
    match dice.roll(if depth == 0 { 8 } else { 14 }) {
        0 | 1 => format!(":{}\r\n", dice.one(&NUMBERS)),
        2..=4 => {
            let word = dice.one(&WORDS);
            format!("${}\r\n{word}\r\n", word.len())
        }
        5 => "_\r\n".into(),
        6 => format!("+{}\r\n", dice.one(&["OK", "queued", "QUEUED"])),
        7 => format!(
            "-{} injected\r\n",
            dice.one(&["ERR", "OOM", "LOADING", "NOSCRIPT", "MOVED 1 h:1", "WHAT"])
        ),
        8 => format!(",{}\r\n", dice.one(&["1.5", "inf", "-0"])),
        9 => format!("#{}\r\n", dice.one(&["t", "f"])),
        _ => {
            let items = dice.roll(9);
            format!("*{items}\r\n") + &(0..items).map(|_| value(dice, depth - 1)).collect::<String>()
        }
    }
}

/// What stands in place of an answer; now and then not even RESP.
fn nonsense(dice: &mut Dice) -> String {
    match dice.roll(2000) {
        0 => "$5\r\nab".into(),
        1 => "*-7\r\n?\r\n".into(),
        _ => value(dice, 3),
    }
}

struct Fake {
    url: String,
    answered: Arc<AtomicUsize>,
    /// As long as this is not set, scripts are answered as a server would that just started.
    hostile: Arc<AtomicBool>,
}

impl Fake {
    async fn start(seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("bound"));
        let (answered, hostile) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, mean) = (answered.clone(), hostile.clone());
        tokio::spawn(async move {
            let mut number = seed;
            while let Ok((client, _)) = listener.accept().await {
                // Each connection has numbers of its own: one that ends early must not make the next ones end early.
                number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mixed = (number ^ (number >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                tokio::spawn(serve(client, Dice(mixed | 1), count.clone(), mean.clone()));
            }
        });
        Self { url, answered, hostile }
    }
}

async fn serve(mut client: TcpStream, mut dice: Dice, count: Arc<AtomicUsize>, hostile: Arc<AtomicBool>) {
    let mut input = Vec::new();
    let mut channel = None;
    loop {
        let mut chunk = [0; 16 << 10];
        match client.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(n) => input.extend_from_slice(&chunk[..n]),
        }
        let mut out = String::new();
        while let Some(len @ 1..) = frame_len(&input) {
            let request: Vec<u8> = input.drain(..len).collect();
            let text = String::from_utf8_lossy(&request).into_owned();
            let word = |n: usize| text.split("\r\n").nth(2 * n + 2).unwrap_or_default().to_owned();
            out += &match &*word(0) {
                "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".into(),
                "CLIENT" | "SELECT" => "+OK\r\n".into(),
                "INFO" => "$20\r\nredis_version:7.0.0\n\r\n".into(),
                "SUBSCRIBE" => {
                    channel = Some(word(1));
                    let name = word(1);
                    format!(">3\r\n$9\r\nsubscribe\r\n${}\r\n{name}\r\n:1\r\n", name.len())
                }
                _ if hostile.load(Ordering::SeqCst) => {
                    count.fetch_add(1, Ordering::SeqCst);
                    nonsense(&mut dice)
                }
                _ => match &*word(2) {
                    // Two keys: a heartbeat. Three: a claim, a sweep or an overview.
                    // One key: a probe of rights, by its text, or the number of partitions.
                    "1" if word(0) == "EVAL" => "*0\r\n".into(),
                    "1" => "*1\r\n:1\r\n".into(),
                    "3" if text.contains("\r\ntake\r\n") => {
                        "*1\r\n*3\r\n$7\r\nclaimed\r\n:1\r\n:0\r\n".into()
                    }
                    "3" if text.contains("PUBLISH") => "*4\r\n:0\r\n$1\r\n0\r\n*0\r\n*0\r\n".into(),
                    "3" => "*4\r\n:0\r\n:0\r\n*0\r\n*0\r\n".into(),
                    _ => "*4\r\n:1\r\n:1\r\n:1700000000000\r\n*1\r\n$4\r\nheld\r\n".into(),
                },
            };
            // A doorbell of its own making.
            if let (Some(name), true) = (&channel, hostile.load(Ordering::SeqCst)) {
                let word = dice.one(&WORDS);
                let (n, w) = (name.len(), word.len());
                out += &format!(">3\r\n$7\r\nmessage\r\n${n}\r\n{name}\r\n${w}\r\n{word}\r\n");
            }
        }
        if client.write_all(out.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Ten thousand replies of every shape to every kind of call, while a loop runs.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_nonsensical_replies_neither_panic_nor_hang_nor_deliver() {
    let seed = seed();
    let fake = Fake::start(seed).await;
    let builder = Courier::builder()
        .call_timeout(Duration::from_millis(300))
        .deadline(Duration::from_millis(500))
        .heartbeat(Duration::from_millis(50))
        .look_again(Duration::from_millis(50));
    let courier = builder.connect(&fake.url).await.expect("connected");
    let s = session("mine");
    let sink = Recorder::new();
    let registry = courier.subscribers();
    let claimed = registry.ensure_running(&s, sink.clone());
    tokio::time::timeout(Duration::from_secs(10), claimed).await.expect("in time").expect("claimed");
    fake.hostile.store(true, Ordering::SeqCst);

    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (courier, s, answered) = (courier.clone(), s.clone(), fake.answered.clone());
        callers.spawn(async move {
            while answered.load(Ordering::SeqCst) < 10_000 {
                let all = async {
                    let mut errors: Vec<Option<Error>> = Vec::new();
                    errors.push(courier.push(push(&s, "x")).await.err());
                    errors.push(courier.stats(&s).await.err());
                    errors.push(courier.overview(10).await.err());
                    errors.push(courier.dead_letters(&s).list(0, 10).await.err());
                    errors.push(courier.dead_letters(&s).requeue(None).await.err());
                    errors.push(courier.dead_letters(&s).purge(None).await.err());
                    for shown in errors.into_iter().flatten().map(|e| e.to_string()) {
                        assert!(!shown.contains("foreign"), "a body in an error: {shown}");
                    }
                };
                tokio::time::timeout(Duration::from_secs(20), all).await.expect("every call ends");
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap_or_else(|e| panic!("TEST_SEED={seed}: {e}"));
    }
    assert!(sink.seen().is_empty(), "TEST_SEED={seed}: delivered {:?}", sink.bodies());
    let stopped = courier.shutdown(Duration::from_secs(1));
    tokio::time::timeout(Duration::from_secs(5), stopped).await.expect("it stops in time");
}
