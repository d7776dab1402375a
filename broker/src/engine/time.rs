//! Time enters the engine as an argument.

/// The moment of an event, on two clocks.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Now {
    /// Milliseconds on a clock that never goes back; its zero means nothing.
    pub ms: u64,
    /// Milliseconds since the Unix epoch.
    pub wall_ms: u64,
}
