//! The broker's own log lines, on standard error.

use crate::config::{LogFormat, LogLevel, Settings, Value};
use tracing::level_filters::LevelFilter;

/// Starts logging in the form and from the level that the settings say. A second call changes nothing.
pub fn start(settings: &Settings) {
    let level = match settings.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false);
    let started = match settings.log_format {
        LogFormat::Text => lines
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
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
