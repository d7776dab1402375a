//! Recovery: the newest checkpoint, and the records of the chunks behind it.

use super::super::chunk::Chunk;
use super::super::wal::{Recovery, WalError};
use super::record::{Malformed, Record};
use super::{Damage, LaneState, checkpoint};

const REMEDY: &str =
    "Move the data directory away and restore a backup of it, or start with an empty one";

/// Why a lane's state cannot be recovered. The broker must not start on it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RecoverError {
    /// The checkpoint cannot be read.
    #[error("the log's checkpoint is damaged: {0}. {REMEDY}")]
    Checkpoint(Malformed),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] WalError),
    /// Chunks that recovery needs are missing.
    #[error("the log continues with chunk {found} where chunk {expected} should be. {REMEDY}")]
    Gap {
        /// The number that should follow.
        expected: u64,
        /// The number that did.
        found: u64,
    },
    /// A record is intact but makes no sense where it stands.
    #[error("chunk {seq} of the log, byte {offset}: {damage}. {REMEDY}")]
    Damage {
        /// The chunk.
        seq: u64,
        /// Where in the chunk the record begins, bytes.
        offset: u32,
        /// What is wrong with it.
        damage: Damage,
    },
}

/// The state as of the last record, and the number of the last chunk.
///
/// Replays the chunks behind `checkpoint` (all of them, from number 1, without one). Chunks the checkpoint covers are
/// passed over; from there on none may be missing.
///
/// # Errors
/// [`RecoverError`] if the checkpoint, a chunk or a record is damaged, or a chunk is missing.
pub fn recover(
    checkpoint: Option<&[u8]>,
    chunks: impl IntoIterator<Item = Result<Chunk, WalError>>,
) -> Result<(LaneState, u64), RecoverError> {
    let (mut last_seq, mut state) = match checkpoint {
        Some(bytes) => checkpoint::decode(bytes).map_err(RecoverError::Checkpoint)?,
        None => (0, LaneState::default()),
    };
    for chunk in chunks {
        let chunk = chunk?;
        let seq = chunk.seq();
        if seq <= last_seq {
            continue;
        }
        if seq - 1 != last_seq {
            return Err(RecoverError::Gap {
                expected: last_seq + 1,
                found: seq,
            });
        }
        for (offset, body) in chunk.records() {
            let body = chunk.bytes().get(body).unwrap_or_default();
            Record::decode(body)
                .map_err(Damage::Malformed)
                .and_then(|record| state.apply(record, seq, offset))
                .map_err(|damage| RecoverError::Damage {
                    seq,
                    offset,
                    damage,
                })?;
        }
        last_seq = seq;
    }
    Ok((state, last_seq))
}

/// [`recover`] from what a log found when it was opened. Blocks on disk reads.
///
/// # Errors
/// As [`recover`].
pub fn recover_lane(recovery: &mut Recovery) -> Result<(LaneState, u64), RecoverError> {
    let checkpoint = recovery.checkpoint.clone();
    let from = checkpoint
        .as_ref()
        .map_or(1, |checkpoint| checkpoint.upto.saturating_add(1));
    let (state, last_seq) = recover(
        checkpoint.as_ref().map(|c| c.data.as_ref()),
        recovery.chunks(from),
    )?;
    if last_seq < recovery.last_seq {
        return Err(RecoverError::Gap {
            expected: last_seq + 1,
            found: recovery.last_seq,
        });
    }
    Ok((state, last_seq))
}

#[cfg(test)]
mod tests;
