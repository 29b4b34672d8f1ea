//! The `mcp-courier` command. Everything it does goes through the public API of the library; only `bench` talks to
//! Redis by itself as well, for its baselines.

// A binary has no outside: `pub` here means "for the other modules".
#![allow(unreachable_pub)]

mod args;
mod bench;
mod bridge;
mod dead;
mod demo;
mod doctor;
mod listen;
mod output;
mod push;
mod signals;
#[cfg(unix)]
mod soak;
mod stats;
mod tasks;
mod writer;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Bridge, Command};
use crate::output::Failure;

fn main() -> ExitCode {
    let args = Args::parse();
    output::log(args.verbose, has_faults_on_purpose(&args.command));
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

/// Warnings of the library are part of the plan then.
fn has_faults_on_purpose(command: &Command) -> bool {
    #[cfg(unix)]
    if matches!(command, Command::Soak(_) | Command::SoakNode(_)) {
        return true;
    }
    matches!(command, Command::Demo(_) | Command::Bench(_))
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
        Command::Tasks(tasks) => tasks::run(&server, json, tasks).await,
        Command::Bridge(Bridge::Fastmcp(args)) => bridge::fastmcp(&server, json, args).await,
        Command::Bench(bench) => bench::run(server, json, bench).await,
        Command::BenchNode(node) => bench::run_node(server, node).await,
        #[cfg(unix)]
        Command::Soak(soak) => soak::run(json, soak).await,
        #[cfg(unix)]
        Command::SoakNode(node) => soak::run_node(server, node).await,
        Command::Doctor => doctor::run(&server, json).await,
    }
}
