//! The broker's own log lines, on standard error.

use crate::config::{LogFormat, LogLevel, Settings, Value};
use std::sync::OnceLock;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// The way to the level that counts.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Changes the least severe level that is logged. Nothing happens where logging was not started.
pub fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get()
        && let Err(error) = handle.reload(filter(level))
    {
        tracing::warn!("the log level stays as it is: {error}");
    }
}

/// Starts logging in the form and from the level that the settings say. A second call changes nothing.
pub fn start(settings: &Settings) {
    let (level, handle) = reload::Layer::new(filter(settings.log_level));
    let registry = tracing_subscriber::registry().with(level);
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let started = match settings.log_format {
        LogFormat::Text => registry
            .with(lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())))
            .try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    if started.is_ok() {
        let _ = LEVEL.set(handle);
    }
    if started.is_err() {
        tracing::debug!(format = %settings.log_format.show(), "logging had been started before");
    }
}

/// Makes every panic, on any thread, a log line and the end of the process: a broker that lost one of its
/// threads must not go on as if it were whole. What was acknowledged is on disk.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        tracing::error!(
            thread = thread.name().unwrap_or("unnamed"),
            backtrace = %std::backtrace::Backtrace::capture(),
            "internal error, the broker ends: {panic}"
        );
        std::process::abort();
    }));
}
