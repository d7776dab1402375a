//! The managed-ledger log above the WAL: topics, ledgers, cursors, and the writing side of a lane.
//!
//! Everything here is pure: no IO and no clock. What a lane wants written or read leaves it as a value, and what the
//! disk answered comes back as an argument. The same methods change the state live and at recovery, so replaying the
//! log gives the state the broker had.

pub mod cache;
pub mod checkpoint;
pub mod cursor;
mod fields;
pub mod lane;
pub mod ledgers;
pub mod position;
pub mod record;
pub mod recover;
pub mod sequences;
pub mod state;
#[cfg(test)]
mod testing;

pub use cache::ChunkCache;
pub use checkpoint::RANGE_BYTES;
pub use cursor::{AckSet, AckState, Behind, Outcome};
pub use lane::{Appended, Full, Lane, LaneConfig, Read, ReadHint, TooLarge};
pub use ledgers::{LedgerInfo, Ledgers, Location, RollPolicy, Run, Trimmed};
pub use position::Position;
pub use record::{AckedId, CursorId, List, Malformed, Record, TopicId};
pub use recover::{RecoverError, recover, recover_lane};
pub use sequences::{Sequence, SequenceId, Sequences};
pub use state::{CursorState, Damage, LaneState, TopicState};
