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
    match invocation {
        cli::Invocation::Config(effective, json) => {
            let text = if json {
                cli::json(&effective)
            } else {
                cli::table(&effective)
            };
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        cli::Invocation::Broker(effective) => {
            logging::start(&effective.settings);
            logging::abort_on_panic();
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
