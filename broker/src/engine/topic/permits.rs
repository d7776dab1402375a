//! What a delivery costs, and what a consumer has left.
//!
//! A delivered entry has one count P, fixed once: the messages in it that are still to be delivered (PIP-491). The same P leaves the consumer's
//! balance and the dispatcher's total, counts as unacknowledged, feeds the average, and is written into the MESSAGE. Nothing computes it again.
//!
//! Credit belongs to one incarnation of a consumer: the [`Account`] goes with it, and nothing that an earlier one was granted or owed is booked on
//! a later one.

/// The cost of one delivery, in messages; never 0.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::engine) struct Permits(u32);

impl Permits {
    /// The cost of an entry of `count` messages of which the `ack_set` leaves some open (bit 1; empty = all). `None` if it leaves none: such
    /// an entry is not delivered.
    pub(super) fn finalize(count: u32, ack_set: &[i64]) -> Option<Self> {
        let permits = if ack_set.is_empty() {
            count
        } else {
            open_messages(ack_set, count)
        };
        (permits > 0).then_some(Permits(permits))
    }

    /// In messages.
    pub(super) fn get(self) -> u32 {
        self.0
    }
}

/// Messages of a batch of `count` that a set leaves open (bit 1).
fn open_messages(ack_set: &[i64], count: u32) -> u32 {
    let mut left = u64::from(count);
    let mut open = 0;
    for word in ack_set {
        let bits = left.min(64);
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1_u64 << bits) - 1
        };
        open += (*word as u64 & mask).count_ones();
        left -= bits;
    }
    open
}

/// What one incarnation of a consumer was granted, has spent, and has left. In messages.
///
/// **Batches that come back whole.** An entry that is delivered in part costs P, the part. Clients that know nothing of P (the C++ core 4.2 and
/// what is built on it) return the whole batch, B, and would hold more credit each time such an entry comes again. So credit that would lift the
/// balance above the highest it ever was is taken back, but never more than the sum of B - P that this incarnation was sent and that was
/// not taken back before. A client that returns P never exceeds its highest balance by returning, and loses nothing; one that raises its queue later
/// may get that much less of the raise, and never falls below what it had.
#[derive(Debug)]
pub(super) struct Account {
    balance: i64,
    /// Credit that came while the consumer was blocked.
    parked: i64,
    /// The highest balance so far.
    peak: i64,
    /// Messages that may come back although they were not delivered: the sum of B - P.
    suspect: u64,
    /// The sum of its FLOWs.
    granted: u64,
    /// The sum of P delivered.
    spent: u64,
    /// Credit that the rule above took back.
    reclaimed: u64,
    /// Messages per delivered entry; 0 before the first.
    average: f64,
    /// Entries and messages sent since the average was last brought up to date.
    recent: (u32, u64),
}

impl Default for Account {
    fn default() -> Self {
        Account {
            balance: 0,
            parked: 0,
            peak: 0,
            suspect: 0,
            granted: 0,
            spent: 0,
            reclaimed: 0,
            average: 0.0,
            recent: (0, 0),
        }
    }
}

impl Account {
    /// Messages the consumer may still be sent; below zero after a batch that was larger. Never clamped.
    pub(super) fn balance(&self) -> i64 {
        self.balance
    }

    /// A FLOW. Answers the change of the balance.
    pub(super) fn flow(&mut self, permits: u32, blocked: bool) -> i64 {
        self.granted += u64::from(permits);
        if blocked {
            self.parked += i64::from(permits);
            return 0;
        }
        self.credit(i64::from(permits))
    }

    /// Credits what was parked. Answers the change of the balance.
    pub(super) fn unpark(&mut self) -> i64 {
        let parked = std::mem::take(&mut self.parked);
        self.credit(parked)
    }

    fn credit(&mut self, permits: i64) -> i64 {
        let before = self.balance;
        let after = before.saturating_add(permits);
        let above = u64::try_from(after.saturating_sub(self.peak)).unwrap_or(0);
        let back = above.min(self.suspect);
        self.suspect -= back;
        self.reclaimed += back;
        self.balance = after.saturating_sub_unsigned(back);
        self.peak = self.peak.max(self.balance);
        self.balance - before
    }

    /// A delivery of `permits` out of a batch of `count`. Answers the change of the balance.
    pub(super) fn debit(&mut self, permits: Permits, count: u32) -> i64 {
        let cost = i64::from(permits.get());
        self.balance -= cost;
        self.spent += u64::from(permits.get());
        self.suspect += u64::from(count.saturating_sub(permits.get()));
        self.recent.0 += 1;
        self.recent.1 += u64::from(permits.get());
        -cost
    }

    /// Nothing was sent since the last [`Account::settle`].
    pub(super) fn is_settled(&self) -> bool {
        self.recent.0 == 0
    }

    /// Brings the average up to date with what was sent, if anything was: the first send is the average, later ones weigh a tenth.
    pub(super) fn settle(&mut self) {
        let (entries, messages) = std::mem::take(&mut self.recent);
        if entries == 0 {
            return;
        }
        let now = messages as f64 / f64::from(entries);
        self.average = if self.average == 0.0 {
            now
        } else {
            self.average * 0.9 + now * 0.1
        };
    }

    /// Messages per entry, as sends were so far; 1 before the first.
    pub(super) fn average(&self) -> f64 {
        self.average.max(1.0)
    }

    /// What does not add up, if anything: the balance is what was granted less what was delivered.
    pub(super) fn audit(&self) -> Result<(), String> {
        let booked = i128::from(self.balance) + i128::from(self.parked);
        let due = i128::from(self.granted) - i128::from(self.spent) - i128::from(self.reclaimed);
        if booked == due {
            Ok(())
        } else {
            Err(format!("{booked} booked, {due} due: {self:?}"))
        }
    }

    /// Granted, delivered, taken back, in messages.
    pub(super) fn books(&self) -> (u64, u64, u64) {
        (self.granted, self.spent, self.reclaimed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn whole(count: u32) -> Permits {
        Permits::finalize(count, &[]).unwrap()
    }

    #[test]
    fn only_open_bits_within_the_batch_count() {
        assert_eq!(open_messages(&[0b10101], 5), 3);
        assert_eq!(open_messages(&[-1], 5), 5);
        assert_eq!(open_messages(&[-1, -1], 70), 70);
        assert_eq!(open_messages(&[-2], 70), 63);
        assert_eq!(open_messages(&[0], 3), 0);
        assert_eq!(open_messages(&[0, 0, -1], 70), 0);
        assert_eq!(Permits::finalize(3, &[0]), None);
    }

    #[test]
    fn balances_go_below_zero_and_come_back_exactly() {
        let mut account = Account::default();
        assert_eq!(account.flow(1, false), 1);
        assert_eq!(account.debit(whole(1000), 1000), -1000);
        assert_eq!(account.balance(), -999);
        account.flow(1000, false);
        assert_eq!(account.balance(), 1);
        account.audit().unwrap();
    }

    #[test]
    fn credit_for_a_blocked_consumer_waits() {
        let mut account = Account::default();
        assert_eq!(account.flow(7, true), 0);
        assert_eq!(account.balance(), 0);
        account.audit().unwrap();
        assert_eq!(account.unpark(), 7);
        assert_eq!(account.unpark(), 0);
        account.audit().unwrap();
    }

    #[test]
    fn the_average_follows_what_was_sent() {
        let mut account = Account::default();
        account.settle();
        assert_eq!(account.average(), 1.0);
        account.debit(whole(10), 10);
        account.debit(whole(20), 20);
        account.settle();
        assert_eq!(account.average(), 15.0);
        account.settle();
        assert_eq!(account.average(), 15.0);
        account.debit(whole(25), 25);
        account.settle();
        assert!((account.average() - 16.0).abs() < 1e-9);
    }

    /// Ten half-acked batches, each returned whole, by a queue of 1000.
    #[test]
    fn whole_returns_of_half_batches_do_not_inflate() {
        let mut account = Account::default();
        account.flow(1000, false);
        account.debit(whole(100), 100);
        account.flow(100, false);
        let half = Permits::finalize(100, &[-1 << 50, (1 << 36) - 1]).unwrap();
        assert_eq!(half.get(), 50);
        for _ in 0..10 {
            account.debit(half, 100);
            account.flow(100, false);
            assert_eq!(account.balance(), 1000);
            account.audit().unwrap();
        }
    }

    #[test]
    fn exact_returns_lose_nothing() {
        let mut account = Account::default();
        account.flow(1000, false);
        let half = Permits::finalize(100, &[-1 << 50, (1 << 36) - 1]).unwrap();
        for _ in 0..10 {
            account.debit(half, 100);
            account.flow(50, false);
            assert_eq!(account.balance(), 1000);
        }
        assert_eq!(account.books(), (1500, 500, 0));
        // And without any part of a batch, all credit is credit.
        let mut account = Account::default();
        for _ in 0..10 {
            account.flow(1000, false);
        }
        assert_eq!(account.balance(), 10_000);
    }
}
