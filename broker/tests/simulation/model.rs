//! What the simulated clients know, and therefore what the broker may do.

use std::collections::{BTreeMap, BTreeSet};

/// Ledger and entry.
pub type At = (u64, u64);

/// One SEND.
#[derive(Debug, Clone)]
pub struct Sent {
    pub topic: usize,
    /// Which opened producer it came from.
    pub stream: u64,
    pub batch: Option<i32>,
    /// Not to be delivered before, where messages are delayed; 0 = at once.
    pub due: u64,
    /// Its receipt came: it must never be lost.
    pub receipt: bool,
    /// Refused: it must never be seen.
    pub refused: bool,
    pub at: Option<At>,
}

/// Everything published, by the number in its payload.
#[derive(Debug, Default)]
pub struct Published {
    pub sent: Vec<Sent>,
    by_place: BTreeMap<(usize, At), u64>,
    by_stream: BTreeMap<(u64, u64), At>,
}

impl Published {
    /// A new SEND; its number.
    pub fn send(&mut self, topic: usize, stream: u64, batch: Option<i32>, due: u64) -> u64 {
        self.sent.push(Sent {
            topic,
            stream,
            batch,
            due,
            receipt: false,
            refused: false,
            at: None,
        });
        self.sent.len() as u64 - 1
    }

    /// A receipt or a delivery says where it is: always the same place, nobody else's, and in the order of its producer.
    pub fn seen(&mut self, number: u64, topic: usize, at: At) {
        let sent = self
            .sent
            .get_mut(number as usize)
            .unwrap_or_else(|| panic!("message {number} was never published"));
        assert_eq!(sent.topic, topic, "message {number} is in another topic");
        assert!(!sent.refused, "message {number} was refused and is there");
        match sent.at {
            Some(before) => assert_eq!(before, at, "message {number} is in two places"),
            None => sent.at = Some(at),
        }
        let stream = sent.stream;
        let other = *self.by_place.entry((topic, at)).or_insert(number);
        assert_eq!(other, number, "two messages at {at:?}");
        self.by_stream.insert((stream, number), at);
        let before = self
            .by_stream
            .range((stream, 0)..(stream, number))
            .next_back();
        let behind = self
            .by_stream
            .range((stream, number + 1)..(stream, u64::MAX))
            .next();
        assert!(
            before.is_none_or(|(_, place)| *place < at),
            "message {number} stands before an earlier one of its producer"
        );
        assert!(
            behind.is_none_or(|(_, place)| at < *place),
            "message {number} stands behind a later one of its producer"
        );
    }
}

/// Keys that messages are published under.
const KEYS: u64 = 7;

/// The key of a message.
pub fn key_of(number: u64) -> String {
    format!("key-{}", number % KEYS)
}

/// What the clients of a Key_Shared subscription can know of its keys.
#[derive(Debug, Default)]
pub struct Keys {
    /// Keys wait for their holders.
    pub ordered: bool,
    /// Who has which message at hand: heard, and neither acknowledged nor given back.
    in_hand: BTreeMap<At, (u64, String)>,
    /// The last message of a key that came for the first time.
    last: BTreeMap<String, At>,
}

impl Keys {
    pub fn new(ordered: bool) -> Keys {
        Keys {
            ordered,
            ..Keys::default()
        }
    }

    /// `first` = it comes for the first time, and in the order of its key.
    fn delivery(&mut self, number: u64, at: At, consumer: u64, first: bool, name: &str) {
        let key = key_of(number);
        if self.ordered {
            let other = self
                .in_hand
                .iter()
                .find(|(_, (holder, of))| *holder != consumer && *of == key);
            assert!(
                other.is_none(),
                "{consumer} gets {at:?} of {key} on {name} while another has {other:?}"
            );
            let last = self.last.get(&key);
            assert!(
                !first || last.is_none_or(|last| *last < at),
                "{at:?} of {key} comes behind {last:?} on {name}"
            );
        }
        if first {
            self.last.insert(key.clone(), at);
        }
        self.in_hand.insert(at, (consumer, key));
    }

    /// May a message have to wait until others of its key are acknowledged?
    pub fn may_drain(&self, number: u64) -> bool {
        let key = key_of(number);
        self.ordered && self.in_hand.values().any(|(_, of)| *of == key)
    }

    /// Nobody has anything.
    pub fn are_free(&self) -> bool {
        self.in_hand.is_empty()
    }
}

/// A subscription as far as its clients can know.
#[derive(Debug, Default)]
pub struct Sub {
    pub topic: usize,
    pub name: String,
    pub shared: bool,
    /// It is Key_Shared, and `shared` too.
    pub keys: Option<Keys>,
    /// Several consumers of which one is served: what the last one got comes again to the next.
    pub failover: bool,
    /// Failover: acknowledged for certain when everything was at rest. Later acknowledgments may cross deliveries to another consumer.
    pub rested: BTreeSet<At>,
    pub rested_upto: Option<At>,
    /// Acknowledged for certain: an AckResponse came, and no SEEK since.
    pub acked: BTreeSet<At>,
    /// Acknowledged for certain up to here.
    pub acked_upto: Option<At>,
    /// Open messages of batches, as far as that is certain.
    pub open: BTreeMap<At, u64>,
    /// Delivered, and no reason yet to deliver it again: who holds it.
    pub held: BTreeMap<At, u64>,
    /// Delivered at least once, to anybody.
    pub delivered: BTreeSet<u64>,
    /// Named as a whole in an ACK that was sent, whatever became of it; and up to where cumulatively.
    pub ever_acked: BTreeSet<At>,
    pub ever_acked_upto: Option<At>,
    /// A SEEK was sent: deliveries that cross it make it unknowable who holds what, until the next start.
    pub holders_unknown: bool,
    /// Rises with each SEEK sent.
    pub seeks: u64,
    /// SEEKs that may still take effect.
    pub seeks_open: u32,
    /// Until the next rest nobody can say what may come twice.
    pub loose: bool,
    /// Consumers up to this key may still get what was sent to them before a SEEK.
    pub sought_key: u64,
    /// What a SEEK may have skipped: places below, and numbers below.
    pub skipped: At,
    pub skipped_numbers: u64,
}

impl Sub {
    /// An entry arrives at `consumer`.
    pub fn delivery(&mut self, number: u64, at: At, consumer: u64, open: u64, delayed: bool) {
        if self.loose && consumer <= self.sought_key {
            // On its way since before the SEEK: somebody else may have acknowledged it in the meantime.
            self.held.entry(at).or_insert(consumer);
            self.delivered.insert(number);
            return;
        }

        if self.failover {
            assert!(
                !self.rested.contains(&at) && self.rested_upto.is_none_or(|upto| at > upto),
                "{at:?} was acknowledged on {} and comes again",
                self.name
            );
            self.held.insert(at, consumer);
            self.delivered.insert(number);
            return;
        }
        assert!(
            !self.acked.contains(&at),
            "{at:?} was acknowledged on {} and comes again",
            self.name
        );
        assert!(
            self.acked_upto.is_none_or(|upto| at > upto),
            "{at:?} was acknowledged cumulatively on {} and comes again",
            self.name
        );
        if let Some(left) = self.open.get(&at) {
            assert_eq!(
                open & !left,
                0,
                "acknowledged messages of batch {at:?} on {} come again: {open:b} of {left:b}",
                self.name
            );
        }
        let holder = self.held.insert(at, consumer);
        assert!(
            self.loose || holder.is_none(),
            "{at:?} comes twice on {}: {holder:?} holds it, {consumer} got it",
            self.name
        );
        let first = self.delivered.insert(number);
        if let Some(keys) = self.keys.as_mut().filter(|_| !self.loose) {
            keys.delivery(number, at, consumer, first && !delayed, &self.name);
        }
    }

    /// A consumer no longer has a message at hand: it acknowledged it, or gave it back.
    pub fn let_go(&mut self, at: At) {
        if let Some(keys) = &mut self.keys {
            keys.in_hand.remove(&at);
        }
    }

    /// A consumer is gone.
    pub fn left(&mut self, consumer: u64) {
        self.held.retain(|_, holder| *holder != consumer);
        if let Some(keys) = &mut self.keys {
            keys.in_hand.retain(|_, (holder, _)| *holder != consumer);
        }
    }

    /// A SEEK to `to` was sent; `None` = by time.
    pub fn seek(&mut self, to: Option<At>, published: u64, newest_key: u64) {
        self.sought_key = newest_key;
        self.holders_unknown = true;
        self.seeks += 1;
        self.seeks_open += 1;
        self.loose = true;
        self.held.clear();
        if let Some(keys) = &mut self.keys {
            keys.in_hand.clear();
            keys.last.clear();
        }
        let to = match to {
            Some(to) => {
                self.skipped = self.skipped.max(to);
                to
            }
            None => {
                self.skipped_numbers = published;
                (0, 0)
            }
        };
        self.acked.retain(|at| *at < to);
        self.open.retain(|at, _| *at < to);
        if self.acked_upto.is_some_and(|upto| upto >= to) {
            self.acked_upto = None;
        }
        self.rested.retain(|at| *at < to);
        if self.rested_upto.is_some_and(|upto| upto >= to) {
            self.rested_upto = None;
        }
    }

    /// Nothing is on its way.
    pub fn at_rest(&mut self) {
        if self.failover {
            self.rested.clone_from(&self.acked);
            self.rested_upto = self.acked_upto;
        }
    }

    /// Could nobody be holding this entry, and nobody have acknowledged it? Then whoever has credit must get it.
    pub fn is_loose_end(&self, number: u64, at: At) -> bool {
        let acked =
            self.ever_acked.contains(&at) || self.ever_acked_upto.is_some_and(|upto| at <= upto);
        !acked
            && !self.held.contains_key(&at)
            && at >= self.skipped
            && number >= self.skipped_numbers
    }

    /// Must this message have been delivered when everything has come to rest?
    pub fn owed(&self, number: u64, at: At) -> bool {
        !self.delivered.contains(&number) && at >= self.skipped && number >= self.skipped_numbers
    }
}
