//! The program `vela-client`: see [`vela_client::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    vela_client::cli::main()
}
