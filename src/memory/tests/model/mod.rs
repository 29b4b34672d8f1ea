//! The scripts against a reference model in plain Rust: random interleavings of every verb by several owners, with time
//! moved and owners crashing between any two calls. A failure shrinks to a short script of calls.
//!
//! Every reply, every doorbell and the whole stored state are compared. `MODEL_CASES` sets how many scripts are tried;
//! `TEST_SEED` replays a run.

mod drive;
mod dump;
mod expect;
mod step;
mod world;

use super::support::{Raw, Server, seeded};
use crate::memory::Memory;
use drive::Driver;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use step::{Step, steps};

fn cases(default: u32) -> u32 {
    std::env::var("MODEL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Tries that many scripts; the shortest one that fails is in the panic.
fn try_all(cases: u32, seed: u64, run: impl Fn(&[Step]) -> Result<(), String>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome =
        runner.run(&steps(), |script| run(&script).map_err(proptest::test_runner::TestCaseError::fail));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, script)) => {
            let lines: Vec<String> =
                script.iter().enumerate().map(|(n, s)| format!("{:>3}. {s}", n + 1)).collect();
            panic!("TEST_SEED={seed}\n{}\n{}", lines.join("\n"), why.message());
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn every_script_of_calls_on_the_engine_does_what_the_model_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (seed, _) = seeded();
    let memory = runtime.block_on(async { Memory::private() });
    let driver = runtime.block_on(async {
        Driver::new(Raw::new(memory.connect()), Raw::new(memory.connect()), Some(memory.clone())).await
    });
    let driver = std::cell::RefCell::new(driver);
    try_all(cases(1200), seed, |script| runtime.block_on(driver.borrow_mut().run(script)));
    println!("{} calls", driver.borrow().calls);
    driver.borrow().assert_all_was_seen();
}

#[test]
fn every_script_of_calls_on_a_server_does_what_the_model_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (seed, _) = seeded();
    let Some(server) = runtime.block_on(Server::start()) else { return };
    let driver =
        runtime.block_on(async { Driver::new(server.connect().await, server.connect().await, None).await });
    let driver = std::cell::RefCell::new(driver);
    try_all(cases(100), seed, |script| runtime.block_on(driver.borrow_mut().run(script)));
    println!("{} calls", driver.borrow().calls);
}
