//! The torn-tail rule: where an unsealed stream ends.
//!
//! Writes can be in flight side by side when power fails or the process dies, so behind a chunk that is not whole there
//! may be whole ones. What tells a torn tail from damage is what chunks say about each other: each header carries the
//! durable prefix of its time. A bad chunk that a later header calls durable was acknowledged: damage. Otherwise nobody
//! was told of it, nor of anything behind it, and the stream ends at the last intact record.

/// One place of the stream where a chunk header was readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Number of the chunk.
    pub(super) seq: u64,
    /// Durable prefix it states.
    pub(super) durable: u64,
    /// Bytes of intact records.
    pub(super) payload_len: u32,
    /// Whether nothing is wrong with it.
    pub(super) whole: bool,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All chunks seen are whole and contiguous up to `last`.
    Whole {
        /// Number of the last chunk.
        last: u64,
    },
    /// The stream ends with `last`, of which `payload_len` bytes are kept; `None`: all of it. The first bad chunk is
    /// `bad`: `last` itself, or the one that is missing behind it.
    Torn {
        last: u64,
        payload_len: Option<u32>,
        bad: u64,
    },
    /// Chunk `seq` was durable and is not whole.
    Corrupt { seq: u64 },
}

/// Applies the rule to a stream whose first chunk must be `expected`.
///
/// `proven` is a durable prefix known from elsewhere. `holes` are runs of dropped chunks (first, last), ascending; only
/// durable chunks are dropped. `seen` is in file order; numbers that were passed already are leftovers and ignored.
pub(super) fn end(expected: u64, proven: u64, holes: &[(u64, u64)], seen: &[Seen]) -> End {
    let step = |next: u64| {
        holes.iter().fold(next, |n, (first, last)| {
            if (*first..=*last).contains(&n) {
                last + 1
            } else {
                n
            }
        })
    };
    let stated = seen.iter().map(|s| s.durable).max().unwrap_or(0);
    let dropped = holes.iter().map(|h| h.1).max().unwrap_or(0);
    let durable = stated.max(proven).max(dropped);
    let mut next = step(expected);
    for chunk in seen.iter().filter(|c| c.seq >= expected) {
        if chunk.seq < next {
            continue;
        }
        if chunk.seq == next && chunk.whole {
            next = step(next + 1);
            continue;
        }
        return match () {
            () if durable >= next => End::Corrupt { seq: next },
            () if chunk.seq == next && chunk.payload_len > 0 => End::Torn {
                last: next,
                payload_len: Some(chunk.payload_len),
                bad: next,
            },
            () => End::Torn {
                last: next - 1,
                payload_len: None,
                bad: next,
            },
        };
    }
    if durable >= next {
        End::Corrupt { seq: next }
    } else {
        End::Whole { last: next - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seen(seq: u64, durable: u64) -> Seen {
        Seen {
            seq,
            durable,
            payload_len: 10,
            whole: true,
        }
    }

    const fn bad(seq: u64, durable: u64, payload_len: u32) -> Seen {
        Seen {
            seq,
            durable,
            payload_len,
            whole: false,
        }
    }

    #[test]
    fn a_stream_of_whole_chunks_ends_behind_the_last() {
        assert_eq!(end(1, 0, &[], &[]), End::Whole { last: 0 });
        assert_eq!(
            end(4, 3, &[], &[seen(4, 3), seen(5, 3)]),
            End::Whole { last: 5 }
        );
    }

    #[test]
    fn a_bad_chunk_nobody_calls_durable_is_the_torn_end() {
        let torn = End::Torn {
            last: 2,
            payload_len: Some(7),
            bad: 2,
        };
        assert_eq!(
            end(1, 0, &[], &[seen(1, 0), bad(2, 1, 7), seen(3, 1)]),
            torn
        );
        let torn = End::Torn {
            last: 1,
            payload_len: None,
            bad: 2,
        };
        assert_eq!(end(1, 0, &[], &[seen(1, 0), bad(2, 1, 0)]), torn);
        assert_eq!(end(1, 0, &[], &[seen(1, 0), seen(3, 1)]), torn);
    }

    #[test]
    fn a_bad_chunk_that_a_later_header_calls_durable_is_damage() {
        assert_eq!(
            end(1, 0, &[], &[seen(1, 0), bad(2, 1, 7), seen(3, 2)]),
            End::Corrupt { seq: 2 }
        );
        assert_eq!(end(1, 0, &[], &[seen(2, 1)]), End::Corrupt { seq: 1 });
        // Even a later chunk that is itself torn says so.
        assert_eq!(
            end(1, 0, &[], &[bad(1, 0, 7), bad(2, 1, 0)]),
            End::Corrupt { seq: 1 }
        );
        assert_eq!(end(1, 1, &[], &[]), End::Corrupt { seq: 1 });
    }

    #[test]
    fn dropped_chunks_are_stepped_over_and_prove_durability() {
        assert_eq!(
            end(1, 0, &[(2, 3)], &[seen(1, 0), seen(4, 0)]),
            End::Whole { last: 4 }
        );
        assert_eq!(end(1, 0, &[(2, 3)], &[seen(1, 0)]), End::Whole { last: 3 });
        assert_eq!(
            end(1, 0, &[(2, 3)], &[bad(1, 0, 5)]),
            End::Corrupt { seq: 1 }
        );
    }

    #[test]
    fn leftovers_with_numbers_already_passed_are_ignored() {
        assert_eq!(
            end(5, 4, &[], &[seen(5, 4), seen(3, 2), seen(5, 1)]),
            End::Whole { last: 5 }
        );
    }
}
