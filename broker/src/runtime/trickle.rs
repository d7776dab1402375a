//! Frames that come by a few bytes at a time. What a core does for each is a turn, whatever it brought, so thousands of peers
//! that send a byte now and then could keep it busy. Therefore the kernel is asked to wait ([`raw::set_low_water`]) until the rest of
//! such a frame is there, or enough of it to be worth a turn: an honest peer loses nothing by that, for its frame cannot be
//! used earlier. Once in a while it is read all the same, so that its progress is seen.

use super::conn::{Conn, Gate, Read};
use super::core::Core;
use super::port::{ConnId, CoreEngine, Now, Storage};
use super::raw;
use std::collections::VecDeque;

/// Reads below this many bytes in the middle of a frame are tiny.
const TINY: usize = 512;
/// Tiny reads in a row after which a frame trickles.
const SOME: u8 = 2;
/// Bytes that are worth a turn, at most: far below every receive buffer.
const ENOUGH: usize = 4096;
/// How often a trickling frame is looked at, in milliseconds; more often where `frameTimeout` is short.
const LOOK_MS: u64 = 1000;
/// Such looks of one turn.
const LOOKS_PER_TURN: usize = 64;

/// What a connection has to do with this.
#[derive(Debug)]
pub(super) struct Trickle {
    /// Tiny reads in a row.
    tiny: u8,
    /// Bytes for which the kernel waits.
    low_water: usize,
    /// Is on the list of looks.
    listed: bool,
}

impl Default for Trickle {
    fn default() -> Self {
        Self {
            tiny: 0,
            low_water: 1,
            listed: false,
        }
    }
}

/// Connections whose frames trickle, by the time of the next look.
#[derive(Debug)]
pub(super) struct Looks {
    every_ms: u64,
    due: VecDeque<(u64, usize, ConnId)>,
}

impl Looks {
    pub(super) fn new(frame_timeout_ms: u64) -> Self {
        Self {
            every_ms: LOOK_MS.min(frame_timeout_ms / 4).max(1),
            due: VecDeque::new(),
        }
    }

    /// When the next look is due, in milliseconds.
    pub(super) fn next(&self) -> Option<u64> {
        self.due.front().map(|(at, _, _)| *at)
    }
}

impl Conn {
    /// Whether the kernel waits for more than a byte of this connection.
    pub(super) fn trickles(&self) -> bool {
        self.trickle.low_water > 1
    }

    /// Sets for how many bytes the kernel waits, after a read and what came of it.
    fn settle_low_water(&mut self, read: Read) {
        let missing = match read {
            Read::Short(n) if n < TINY => self.decoder.missing(),
            // A read that finds nothing says nothing.
            Read::Empty => return,
            _ => None,
        };
        self.trickle.tiny = match missing {
            Some(_) => self.trickle.tiny.saturating_add(1).min(SOME),
            None => 0,
        };
        let wanted = match missing {
            Some(missing) if self.trickle.tiny >= SOME => missing.clamp(1, ENOUGH),
            _ => 1,
        };
        if wanted != self.trickle.low_water && raw::set_low_water(&self.stream, wanted) {
            self.trickle.low_water = wanted;
        }
    }
}

impl<E: CoreEngine, S: Storage<E>> Core<E, S> {
    /// To be called when a read was handed on. True: the frame trickles, so that readiness is what to wait for.
    pub(super) fn note_trickle(&mut self, key: usize, read: Read, now: Now) -> bool {
        let Some(conn) = self.conns.get_mut(key) else {
            return false;
        };
        let before = conn.trickles();
        conn.settle_low_water(read);
        if conn.trickles() && !before {
            self.memory.note_trickle();
        }
        let Some(id) = conn.id.filter(|_| conn.trickles()) else {
            return false;
        };
        if !std::mem::replace(&mut conn.trickle.listed, true) {
            let at = now.ms + self.looks.every_ms;
            self.looks.due.push_back((at, key, id));
        }
        true
    }

    /// Reads trickling connections that were not looked at for some time.
    pub(super) fn look_at_trickles(&mut self, now: Now) {
        for _ in 0..LOOKS_PER_TURN {
            let Some((at, key, id)) = self.looks.due.pop_front() else {
                return;
            };
            if at > now.ms {
                self.looks.due.push_front((at, key, id));
                return;
            }
            let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.id == Some(id)) else {
                continue;
            };
            conn.trickle.listed = false;
            if conn.trickles() && conn.gate == Gate::Off {
                self.read_now(key, now);
            }
            if let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.id == Some(id))
                && conn.trickles()
                && !std::mem::replace(&mut conn.trickle.listed, true)
            {
                let at = now.ms + self.looks.every_ms;
                self.looks.due.push_back((at, key, id));
            }
        }
    }

    /// Reads what is there without asking to be woken, its portion at most. The last read, and bytes in all; none: it was not to be read, or
    /// is gone.
    pub(super) fn read_now(&mut self, key: usize, now: Now) -> Option<(Read, usize)> {
        let fair = self.engine.serves_in_small_parts();
        let part = self.conns.get(key)?.portion.bytes(fair);
        let mut total = 0;
        loop {
            let source = self.source(key, now)?.at_most(part);
            let (read, _) = self.take_in(key, source, now, None)?;
            if let Read::Short(n) | Read::Full(n) = read {
                total += n;
            }
            if !matches!(read, Read::Full(_)) || total >= part {
                return Some((read, total));
            }
        }
    }
}
