//! Why a run could not be carried out.

use std::fmt::Display;

use thiserror::Error;

/// Says what was being done, with its name and value, and what went wrong.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub(crate) struct Failure(pub(crate) String);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Adds what was being done to an error.
pub(crate) trait Context<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure(format!("{}: {error}", doing())))
    }
}

/// A failure of the given text.
pub(crate) fn fail<T>(text: impl Into<String>) -> Result<T> {
    Err(Failure(text.into()))
}
