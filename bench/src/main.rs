//! The load generator: raw pipelined clients of the Pulsar binary protocol that cost less than the broker they measure.
//!
//! A run ([`engine`]) opens its connections with plain blocking requests ([`setup`], [`connection`]) and deals them out to one glommio executor
//! per processor ([`worker`]), each with one task ([`links`]). From then on nothing is allocated per message: frames are encoded once and
//! patched ([`message`], [`publisher`]), receipts and deliveries are read in place ([`wire`]) and matched with what was sent ([`pending`],
//! [`consumers`], [`verify`]). A run in which anything is missing, repeated, altered or out of order is invalid, and says so with its exit
//! code. What is no load, the sink and idle connections, is one thread on epoll ([`net`]).

mod args;
mod connection;
mod consume;
mod consumers;
mod engine;
mod error;
mod hlog;
mod idle;
mod links;
mod measure;
mod message;
mod net;
mod observer;
mod pending;
mod progress;
mod proxy;
mod publish;
mod publisher;
mod report;
mod report_page;
mod result;
mod run;
mod scenario;
mod schedule;
mod setup;
mod sink;
mod start;
mod verify;
mod wire;
mod worker;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};

/// The run could not be carried out.
const FAILED: u8 = 1;
/// What was asked for cannot be.
const WRONG: u8 = 2;
/// The run is invalid.
const INVALID: u8 = 3;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Run(args) => match run::read(args) {
            Ok((name, settings)) => run::run(args, name, settings),
            Err(failure) => {
                eprintln!("vela-bench: {failure}");
                return ExitCode::from(WRONG);
            }
        },
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
