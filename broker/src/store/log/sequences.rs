//! What deduplication knows of a topic: the highest sequence id that each producer name has stored.
//!
//! The numbers are a part of the log's state. An entry of a topic with deduplication carries its producer and its highest sequence id in its own
//! record, so both are durable together or not at all, and recovery (checkpoint and the records behind it) finds exactly the numbers the broker
//! had. There is no snapshot beside the log that could be older than it.

use std::collections::BTreeMap;

use super::record::TopicId;
use super::state::Damage;

/// A producer's number in its topic's sequences: unique, rising, never reused.
pub type SequenceId = u32;

/// One producer name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sequence {
    /// The producer's name.
    pub name: String,
    /// Its highest sequence id; -1 before the first. Signed, as Java has it.
    pub highest: i64,
}

/// The producers of one topic, by number and by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sequences {
    known: BTreeMap<SequenceId, Sequence>,
    names: BTreeMap<String, SequenceId>,
    next: SequenceId,
}

impl Sequences {
    /// Adds a producer. Live, `id` is [`Self::next`]. A name that is there already begins anew.
    ///
    /// # Errors
    /// [`Damage::Sequence`] if the number was given before; nothing changes then.
    pub fn open(
        &mut self,
        topic: TopicId,
        id: SequenceId,
        name: &str,
        highest: i64,
    ) -> Result<(), Damage> {
        let damage = Damage::Sequence {
            topic,
            sequence: id,
            next: self.next,
        };
        if id < self.next {
            return Err(damage);
        }
        self.next = id.checked_add(1).ok_or(damage)?;
        if let Some(before) = self.names.insert(name.to_owned(), id) {
            self.known.remove(&before);
        }
        let name = name.to_owned();
        self.known.insert(id, Sequence { name, highest });
        Ok(())
    }

    /// Forgets a producer.
    pub fn close(&mut self, id: SequenceId) -> Option<Sequence> {
        let gone = self.known.remove(&id)?;
        self.names.remove(&gone.name);
        Some(gone)
    }

    /// A producer has stored an entry. One that was forgotten meanwhile stays so.
    ///
    /// # Errors
    /// [`Damage::Sequence`] if the number was never given.
    pub fn store(&mut self, topic: TopicId, id: SequenceId, highest: i64) -> Result<(), Damage> {
        if let Some(sequence) = self.known.get_mut(&id) {
            sequence.highest = sequence.highest.max(highest);
            return Ok(());
        }
        self.given(topic, id)
    }

    /// A number that was given once may be gone by now; one that never was is damage.
    ///
    /// # Errors
    /// [`Damage::Sequence`].
    pub fn given(&self, topic: TopicId, id: SequenceId) -> Result<(), Damage> {
        if id < self.next {
            return Ok(());
        }
        Err(Damage::Sequence {
            topic,
            sequence: id,
            next: self.next,
        })
    }

    /// The number of a name.
    pub fn find(&self, name: &str) -> Option<SequenceId> {
        self.names.get(name).copied()
    }

    /// The highest sequence id of a producer.
    pub fn highest(&self, id: SequenceId) -> Option<i64> {
        self.known.get(&id).map(|sequence| sequence.highest)
    }

    /// All producers, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SequenceId, &Sequence)> {
        self.known.iter().map(|(id, sequence)| (*id, sequence))
    }

    /// How many producers are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The number the next producer gets.
    pub fn next(&self) -> SequenceId {
        self.next
    }

    /// What a checkpoint held. `None` if it contradicts itself.
    pub(super) fn restore(
        next: SequenceId,
        known: impl Iterator<Item = (SequenceId, Sequence)>,
    ) -> Option<Self> {
        let mut sequences = Self::default();
        for (id, Sequence { name, highest }) in known {
            if id >= next || sequences.names.contains_key(&name) {
                return None;
            }
            sequences.open(0, id, &name, highest).ok()?;
        }
        sequences.next = next;
        Some(sequences)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_rise_and_names_are_found_until_they_are_forgotten() {
        let mut sequences = Sequences::default();
        sequences.open(4, 0, "a", -1).unwrap();
        sequences.open(4, 1, "b", -1).unwrap();
        sequences.store(4, 1, 7).unwrap();
        // What is behind the highest is known already.
        sequences.store(4, 1, 5).unwrap();
        assert_eq!(
            (sequences.find("b"), sequences.highest(1)),
            (Some(1), Some(7))
        );
        assert!(sequences.open(4, 1, "c", -1).is_err());
        assert!(sequences.store(4, 2, 0).is_err());
        assert_eq!(sequences.close(1).unwrap().highest, 7);
        assert_eq!((sequences.find("b"), sequences.close(1)), (None, None));
        sequences.store(4, 1, 9).unwrap();
        assert_eq!((sequences.highest(1), sequences.len()), (None, 1));
        let known = sequences.iter().map(|(id, s)| (id, s.clone()));
        assert_eq!(Sequences::restore(2, known), Some(sequences));
    }

    #[test]
    fn a_checkpoint_that_contradicts_itself_is_refused() {
        let one = |name: &str| Sequence {
            name: name.into(),
            highest: 0,
        };
        for known in [
            vec![(2, one("a"))],
            vec![(0, one("a")), (1, one("a"))],
            vec![(1, one("a")), (0, one("b"))],
        ] {
            assert_eq!(Sequences::restore(2, known.into_iter()), None);
        }
    }
}
