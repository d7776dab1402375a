//! The `vela` command.

use std::process::ExitCode;
use vela_broker::{cli, logging, runtime};

fn main() -> ExitCode {
    let matches = cli::command().get_matches();
    let invocation = match cli::interpret(&matches, &|name| std::env::var(name).ok()) {
        Ok(invocation) => invocation,
        Err(error) => {
            eprintln!("vela: {error}");
            return ExitCode::from(2);
        }
    };
    // A name that is not UTF-8 is none of ours.
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = cli::unknown_variables(variables);
    match invocation {
        cli::Invocation::Config(effective, json) => {
            let text = if json {
                cli::json(&effective)
            } else {
                cli::table(&effective)
            };
            println!("{}", text.trim_end());
            for line in unknown {
                eprintln!("vela: {line}");
            }
            ExitCode::SUCCESS
        }
        cli::Invocation::Broker(effective) => {
            logging::start(&effective.settings);
            logging::abort_on_panic();
            for line in unknown {
                tracing::warn!("{line}");
            }
            match runtime::run(&effective.settings) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => {
                    eprintln!("vela cannot start: {error}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}
