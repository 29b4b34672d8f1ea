//! The `mcp-courier` command. Everything it does goes through the public API of the library; only `bench` talks to
//! Redis by itself as well, for its baselines.

// A binary has no outside: `pub` here means "for the other modules".
#![allow(unreachable_pub)]

mod args;
mod bench;
mod dead;
mod demo;
mod doctor;
mod listen;
mod output;
mod push;
mod signals;
mod stats;
mod writer;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::output::Failure;

fn main() -> ExitCode {
    let args = Args::parse();
    output::log(args.verbose, matches!(args.command, Command::Demo(_) | Command::Bench(_)));
    let runtime = match runtime(&args.command) {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("mcp-courier: no runtime: {e}");
            return ExitCode::from(output::FAILED);
        }
    };
    let done = runtime.block_on(run(args));
    // Readers of stdin may still sit in a blocking call.
    runtime.shutdown_background();
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

fn runtime(command: &Command) -> std::io::Result<tokio::runtime::Runtime> {
    use tokio::runtime::Builder;
    match command {
        Command::Bench(bench::Bench { threads: Some(1), .. }) => Builder::new_current_thread(),
        Command::Bench(bench::Bench { threads: Some(threads), .. }) => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(*threads as usize);
            builder
        }
        _ => Builder::new_multi_thread(),
    }
    .enable_all()
    .build()
}

async fn run(args: Args) -> Result<u8, Failure> {
    let Args { server, json, command, .. } = args;
    match command {
        Command::Demo(demo) => demo::run(&server, json, demo).await,
        Command::Push(push) => push::run(&server, json, push).await,
        Command::Listen(listen) => listen::run(&server, listen).await,
        Command::Stats(stats) => stats::run(&server, json, stats).await,
        Command::Dead(dead) => dead::run(&server, json, dead).await,
        Command::Bench(bench) => bench::run(server, json, bench).await,
        Command::Doctor => doctor::run(&server, json).await,
    }
}
