//! `report`: one self-contained HTML page of the results of `run`, side by side.

mod hlog;
mod html;
mod load;
mod model;
mod page;
mod svg;

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::error::{Context as _, Result};

#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    /// Result files of `run`, or the directory of a comparison
    #[arg(required = true, value_name = "DIR|FILES")]
    paths: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, short, default_value = "report.html", value_name = "PATH")]
    output: PathBuf,
}

/// Writes the page.
pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let page = page::page(&load::read(&args.paths)?);
    let name = args.output.display();
    fs::write(&args.output, &page).context(|| format!("cannot write {name}"))?;
    println!("{name}: {} KiB", page.len().div_ceil(1024));
    Ok(())
}

#[cfg(test)]
mod tests;
