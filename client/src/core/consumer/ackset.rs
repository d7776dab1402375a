//! Which messages of a batch are still to be acknowledged: bit 1 = not yet, as on the wire.

/// A set of the messages of one batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AckSet {
    words: Vec<u64>,
}

impl AckSet {
    /// All messages of a batch of that size.
    #[must_use]
    pub fn full(size: u32) -> Self {
        let mut words = vec![u64::MAX; (size / 64) as usize];
        if !size.is_multiple_of(64) {
            words.push((1 << (size % 64)) - 1);
        }
        Self { words }
    }

    /// As sent.
    #[must_use]
    pub fn from_words(words: &[i64]) -> Self {
        Self {
            words: words.iter().map(|&word| word as u64).collect(),
        }
    }

    /// To be sent. Words of zeros at the end are left out, but for the first word.
    #[must_use]
    pub fn to_words(&self) -> Vec<i64> {
        let len = self.words.iter().rposition(|&word| word != 0).unwrap_or(0) + 1;
        self.words
            .iter()
            .take(len)
            .map(|&word| word as i64)
            .collect()
    }

    /// Whether that message is still to be acknowledged. Beyond the words: no.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        self.words
            .get((index / 64) as usize)
            .is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    /// Takes one out; whether it was in.
    pub fn clear(&mut self, index: u32) -> bool {
        match self.words.get_mut((index / 64) as usize) {
            Some(word) => {
                let bit = 1 << (index % 64);
                let was = *word & bit != 0;
                *word &= !bit;
                was
            }
            None => false,
        }
    }

    /// Takes out everything up to `index`, itself included.
    pub fn clear_through(&mut self, index: u32) {
        let (whole, bits) = ((index / 64) as usize, index % 64);
        for word in self.words.iter_mut().take(whole) {
            *word = 0;
        }
        if let Some(word) = self.words.get_mut(whole) {
            *word &= !(u64::MAX >> (63 - bits));
        }
    }

    /// Keeps what is in both.
    pub fn intersect(&mut self, other: &Self) {
        for (index, word) in self.words.iter_mut().enumerate() {
            *word &= other.words.get(index).copied().unwrap_or(0);
        }
    }

    /// Set bits.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Set bits below `size`.
    #[must_use]
    pub fn count_below(&self, size: u32) -> u32 {
        // Not by way of a set of that size: it may be a number that somebody made up.
        let (whole, bits) = ((size / 64) as usize, size % 64);
        let ones = |words: &[u64]| words.iter().map(|word| word.count_ones()).sum();
        match self.words.split_at_checked(whole) {
            Some((below, rest)) => {
                let last = rest.first().map_or(0, |word| word & ((1 << bits) - 1));
                ones(below) + last.count_ones()
            }
            None => ones(&self.words),
        }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_batch_of_seventy_with_one_word() {
        let set = AckSet::from_words(&[-2]);
        assert_eq!(set.count_below(70), 63);
        assert!(!set.contains(0) && set.contains(63) && !set.contains(64));
    }

    proptest! {
        #[test]
        fn agrees_with_a_list(size in 1u32..300, cleared in prop::collection::vec(0u32..300, 0..50), through in prop::option::of(0u32..300)) {
            let mut set = AckSet::full(size);
            let mut list: Vec<bool> = vec![true; size as usize];
            for index in cleared {
                let was = list.get_mut(index as usize).map(std::mem::take).unwrap_or(false);
                prop_assert_eq!(set.clear(index), was);
            }
            if let Some(through) = through {
                set.clear_through(through);
                list.iter_mut().take(through as usize + 1).for_each(|bit| *bit = false);
            }
            prop_assert_eq!(set.count() as usize, list.iter().filter(|&&bit| bit).count());
            prop_assert_eq!(set.is_empty(), !list.contains(&true));
            for below in [0, 1, 63, 64, 65, size, size + 1, i32::MAX as u32, u32::MAX] {
                let expected = list.iter().take(below as usize).filter(|&&bit| bit).count();
                prop_assert_eq!(set.count_below(below) as usize, expected);
            }
            for (index, &bit) in list.iter().enumerate() {
                prop_assert_eq!(set.contains(index as u32), bit);
            }
            let again = AckSet::from_words(&set.to_words());
            prop_assert_eq!(again.count_below(size), set.count());
        }
    }
}
