//! `vela-client consume` and `vela-client read`.

use super::args::{Connection, Consume, Read};
use super::{Failure, Interrupt};

pub(super) async fn consume(_: &Connection, _: &Consume, _: Interrupt) -> Result<(), Failure> {
    Ok(())
}
pub(super) async fn read(_: &Connection, _: &Read, _: Interrupt) -> Result<(), Failure> {
    Ok(())
}
