//! The load generator: raw pipelined clients of the Pulsar binary protocol that cost less than the broker they measure.
//!
//! A run opens its connections with plain blocking requests ([`connection`]) and hands them to one thread on epoll ([`net`]).
//! From then on nothing is allocated per message: frames are encoded once and patched ([`message`]), receipts and deliveries
//! are read in place ([`wire`]) and matched with what was sent ([`pending`], [`consume`]). A run in which anything is missing,
//! repeated, altered or out of order is invalid, and says so with its exit code.

mod args;
mod connection;
mod consume;
mod error;
mod idle;
mod measure;
mod message;
mod net;
mod pending;
mod proxy;
mod publish;
mod report;
mod report_page;
mod schedule;
mod sink;
mod start;
mod wire;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};

/// The run could not be carried out.
const FAILED: u8 = 1;
/// The run is invalid.
const INVALID: u8 = 3;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Publish(args) => publish::run(args),
        Command::Consume(args) => consume::run(args),
        Command::Idle(args) => idle::run(args),
        Command::Start(args) => start::run(args),
        Command::Sink(args) => sink::run(args).map(|()| true),
        Command::Report(args) => report_page::run(args).map(|()| true),
        Command::Proxy(args) => proxy::run(args).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(INVALID),
        Err(failure) => {
            eprintln!("vela-bench: {failure}");
            ExitCode::from(FAILED)
        }
    }
}
