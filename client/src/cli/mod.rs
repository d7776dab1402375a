//! The program `vela-client`: `produce`, `consume`, `read`.
//!
//! Messages go to standard output, what a person wants to know while they go to standard error. It ends with 0 if all went well, with
//! 1 if something failed, with 2 if it was called wrongly. An interrupt ends it in good order, with a summary.

mod args;
mod consume;
mod output;
mod produce;
mod progress;
mod value;

pub use args::Arguments;

use crate::auth::Token;
use crate::{Client, Error, Result, TlsOptions};
use args::{Command, Connection};
use clap::Parser as _;
use std::future::Future;
use std::io::Write as _;
use std::process::ExitCode;
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(run(arguments));
            // A read of standard input that never ends must not keep the program.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(Failure::new(format!("no runtime: {error}"))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr().lock(), "vela-client: {}", failure.text);
            ExitCode::from(failure.code)
        }
    }
}

/// Why the program ends with an error, and with which code.
struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 1,
        }
    }

    fn usage(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: 2,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            // A topic, URL or setting that cannot be: it was called wrongly.
            Error::Config { .. } => Self::usage(error.to_string()),
            error => Self::new(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let interrupt = Interrupt::listen();
    let connection = &arguments.connection;
    match &arguments.command {
        Command::Produce(produce) => produce::run(connection, produce, interrupt).await,
        Command::Consume(consume) => consume::consume(connection, consume, interrupt).await,
        Command::Read(read) => consume::read(connection, read, interrupt).await,
    }
}

async fn connect(connection: &Connection) -> Result<Client> {
    let mut builder = Client::builder(&connection.url)
        .memory_limit(connection.memory_limit)
        .operation_timeout(connection.operation_timeout);
    if let Some(token) = &connection.token {
        builder = builder.auth(Token::parse(token));
    }
    if let Some(name) = &connection.listener_name {
        builder = builder.listener_name(name);
    }
    let mut tls = TlsOptions::new()
        .allow_insecure(connection.tls_allow_insecure)
        .verify_hostname(!connection.tls_no_hostname_verification);
    if let Some(path) = &connection.tls_trust_cert_path {
        tls = tls.trust_certs_file(path);
    }
    if let (Some(certificate), Some(key)) =
        (&connection.tls_certificate_file, &connection.tls_key_file)
    {
        tls = tls.client_certificate(certificate, key);
    }
    builder.tls(tls).build().await
}

/// Says when to end: at the first interrupt. At the second the program ends at once.
struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    fn listen() -> Self {
        let (told, heard) = watch::channel(false);
        tokio::spawn(async move {
            while signal().await {
                if told.send_replace(true) {
                    std::process::exit(130);
                }
            }
            // Without signals it lasts as long as the program.
            told.closed().await;
        });
        Self(heard)
    }

    fn came(&self) -> bool {
        *self.0.borrow()
    }

    /// The output of a future, or nothing if an interrupt came first.
    async fn unless<F: Future>(&mut self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            Ok(_) = self.0.wait_for(|came| *came) => None,
            output = future => Some(output),
        }
    }
}

/// Waits for an interrupt or a request to end.
async fn signal() -> bool {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut ended) = signal(SignalKind::terminate()) else {
        return tokio::signal::ctrl_c().await.is_ok();
    };
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.is_ok(),
        came = ended.recv() => came.is_some(),
    }
}
