//! The consumers of a subscription: their credit, and which of them can be sent something.
//!
//! Every change of a balance goes through here, so that the total is the sum of the balances and the ready list is in step with them. The
//! ready list is in the order of service (priority level, then arrival): finding the next consumer takes a logarithm of how many are ready, and
//! those that are not, however many, cost nothing.

use std::collections::BTreeSet;

use slab::Slab;

use super::meter::Meter;
use super::permits::{Account, Permits};
use crate::engine::message::{ClientRef, OpenConsumer};

/// Delivered bytes that a consumer's session may hold unwritten before it is sent no more.
///
/// The consumers of one connection share the memory of one connection: the n-th gets an n-th of this, but at least
/// [`WINDOW_MIN`].
const WINDOW: usize = 1 << 20;
/// The smallest such window.
const WINDOW_MIN: usize = 64 << 10;

/// A connected consumer.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) client: ClientRef,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) version: i32,
    /// 0 is served first.
    priority: i32,
    /// Rises with every consumer of the subscription.
    arrival: u64,
    pub(super) epoch: Option<u64>,
    /// It takes messages of any schema (AUTO_CONSUME).
    pub(super) any_schema: bool,
    pub(super) connected_ms: u64,
    account: Account,
    /// Its SUBSCRIBE was answered: what it is sent comes behind the answer.
    opened: bool,
    /// Too many unacknowledged messages.
    blocked: bool,
    /// Its connection is being closed: it is sent nothing more.
    barred: bool,
    /// Bytes on their way through its session, and how many there may be.
    unwritten: usize,
    window: usize,
    /// The sum of the permits of the MESSAGEs posted to it.
    delivered: u64,
    pub(super) sent: Meter,
    pub(super) sent_bytes: Meter,
    pub(super) redelivered: Meter,
    pub(super) acked: Meter,
}

impl Consumer {
    pub(super) fn new(client: ClientRef, open: &OpenConsumer, wall_ms: u64) -> Self {
        Consumer {
            client,
            name: open.name.clone(),
            address: open.address.clone(),
            metadata: open.metadata.clone(),
            version: open.version,
            priority: open.priority,
            arrival: 0,
            epoch: open.epoch,
            any_schema: open.any_schema,
            connected_ms: wall_ms,
            account: Account::default(),
            opened: false,
            blocked: false,
            barred: false,
            unwritten: 0,
            window: (WINDOW / (open.siblings as usize).saturating_add(1)).max(WINDOW_MIN),
            delivered: 0,
            sent: Meter::default(),
            sent_bytes: Meter::default(),
            redelivered: Meter::default(),
            acked: Meter::default(),
        }
    }

    /// What it was granted and has left.
    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn priority(&self) -> i32 {
        self.priority
    }

    pub(super) fn arrival(&self) -> u64 {
        self.arrival
    }

    /// Nothing but credit may keep the next entry from it.
    pub(super) fn takes(&self) -> bool {
        self.opened && !self.blocked && !self.barred && self.unwritten < self.window
    }

    /// May it be sent another entry?
    pub(super) fn available(&self) -> bool {
        self.takes() && self.account.balance() > 0
    }

    fn key(&self, index: u32) -> Ready {
        (self.priority, self.arrival, index)
    }
}

/// What one incarnation of a consumer was granted and sent, in messages.
#[derive(Copy, Clone, Debug)]
pub struct Books {
    /// Whose they are.
    pub client: ClientRef,
    /// The sum of its FLOWs.
    pub granted: u64,
    /// The sum of the permits of the MESSAGEs posted to it.
    pub delivered: u64,
    /// Credit taken back because batches delivered in part came back whole.
    pub reclaimed: u64,
    /// What it may still be sent, without what is parked.
    pub balance: i64,
    /// The sum of the balances of its subscription.
    pub total: i64,
}

/// Priority, arrival, index.
type Ready = (i32, u64, u32);

/// The consumers of a subscription.
#[derive(Default, Debug)]
pub(super) struct Roster {
    consumers: Slab<Consumer>,
    arrivals: u64,
    /// The sum of the balances.
    total: i64,
    /// Those that can be sent another entry, in the order of service.
    ready: BTreeSet<Ready>,
    /// Those that are blocked.
    blocked: BTreeSet<u32>,
    /// Whose turn it is, and how many entries of the turn are left.
    turn: (i32, u64),
    turn_left: u32,
    /// Those that were sent something since the last [`Roster::settle`].
    served: Vec<u32>,
    /// Those that came to be ready since then.
    risen: Vec<u32>,
}

impl Roster {
    pub(super) fn len(&self) -> usize {
        self.consumers.len()
    }

    /// Consumers that ever came.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    pub(super) fn is_empty(&self) -> bool {
        self.consumers.is_empty()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Consumer> {
        self.consumers.get(index as usize)
    }

    /// Any consumer: the one there is, where there can be only one.
    pub(super) fn first(&self) -> Option<&Consumer> {
        self.consumers.iter().next().map(|(_, consumer)| consumer)
    }

    /// A consumer, for what has no part in who is served.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Consumer> {
        self.consumers.get_mut(index as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Consumer)> {
        self.consumers
            .iter()
            .map(|(index, consumer)| (index as u32, consumer))
    }

    /// Can anybody be sent something?
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds a consumer.
    pub(super) fn admit(&mut self, mut consumer: Consumer) -> u32 {
        self.arrivals += 1;
        consumer.arrival = self.arrivals;
        self.total += consumer.account.balance();
        self.turn_left = 0;
        let index = self.consumers.insert(consumer) as u32;
        self.refresh(index);
        index
    }

    /// Takes a consumer out, and its balance off the total.
    pub(super) fn dismiss(&mut self, index: u32) -> Option<Consumer> {
        let gone = self.consumers.try_remove(index as usize)?;
        self.ready.remove(&gone.key(index));
        self.blocked.remove(&index);
        self.served.retain(|served| *served != index);
        self.total -= gone.account.balance();
        self.turn_left = 0;
        Some(gone)
    }

    /// Changes a consumer, and keeps the total and the ready list in step: `change` answers what it did to the balance.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Consumer) -> i64) {
        if let Some(consumer) = self.consumers.get_mut(index as usize) {
            self.total += change(consumer);
            self.refresh(index);
        }
    }

    fn refresh(&mut self, index: u32) {
        let Some(consumer) = self.consumers.get(index as usize) else {
            return;
        };
        let key = consumer.key(index);
        if consumer.available() {
            if self.ready.insert(key) {
                self.risen.push(index);
            }
        } else {
            self.ready.remove(&key);
        }
        if consumer.blocked {
            self.blocked.insert(index);
        } else {
            self.blocked.remove(&index);
        }
    }

    /// Its SUBSCRIBE is answered.
    pub(super) fn open(&mut self, index: u32) {
        self.change(index, |consumer| {
            consumer.opened = true;
            0
        });
    }

    /// Its connection is being closed.
    pub(super) fn bar(&mut self, index: u32) {
        self.change(index, |consumer| {
            consumer.barred = true;
            0
        });
    }

    /// FLOW.
    pub(super) fn flow(&mut self, index: u32, permits: u32) {
        self.change(index, |consumer| {
            consumer.account.flow(permits, consumer.blocked)
        });
    }

    /// It holds too many unacknowledged messages: its credit waits.
    pub(super) fn block(&mut self, index: u32) {
        self.change(index, |consumer| {
            consumer.blocked = true;
            0
        });
    }

    /// It may go on, with the credit that came meanwhile. False if it was not blocked.
    pub(super) fn unblock(&mut self, index: u32) -> bool {
        let blocked = self.blocked.contains(&index);
        if blocked {
            self.change(index, |consumer| {
                consumer.blocked = false;
                consumer.account.unpark()
            });
        }
        blocked
    }

    /// The blocked ones.
    pub(super) fn blocked(&self) -> Vec<u32> {
        self.blocked.iter().copied().collect()
    }

    /// Books a delivery of `permits` out of a batch of `count`, `bytes` long.
    pub(super) fn charge(&mut self, index: u32, permits: Permits, count: u32, bytes: usize) {
        let Some(consumer) = self.consumers.get(index as usize) else {
            return;
        };
        if consumer.account.is_settled() {
            self.served.push(index);
        }
        self.change(index, |consumer| {
            consumer.unwritten += bytes;
            consumer.account.debit(permits, count)
        });
    }

    /// A MESSAGE with these permits was posted.
    pub(super) fn posted(&mut self, index: u32, permits: u32) {
        if let Some(consumer) = self.consumers.get_mut(index as usize) {
            consumer.delivered += u64::from(permits);
        }
    }

    /// Its session has written delivered bytes. True if that was what kept it from being sent more.
    pub(super) fn written(&mut self, index: u32, bytes: usize) -> bool {
        let Some(consumer) = self.consumers.get(index as usize) else {
            return false;
        };
        let was_full = consumer.unwritten >= consumer.window;
        self.change(index, |consumer| {
            consumer.unwritten = consumer.unwritten.saturating_sub(bytes);
            0
        });
        was_full && self.get(index).is_some_and(Consumer::takes)
    }

    /// Who came to be ready since the last run of dispatch.
    pub(super) fn risen(&self) -> &[u32] {
        &self.risen
    }

    /// Ends a run: the averages take in what was sent.
    pub(super) fn settle(&mut self) {
        self.risen.clear();
        for index in self.served.drain(..) {
            if let Some(consumer) = self.consumers.get_mut(index as usize) {
                consumer.account.settle();
            }
        }
    }

    /// The consumer that the next entry goes to: of the best priority level that has one ready, in turns of `turn_size` entries.
    pub(super) fn pick(&mut self, turn_size: u32) -> Option<u32> {
        let (best, _, _) = *self.ready.first()?;
        let (level, at) = self.turn;
        // From the consumer whose turn it is; if its turn is over, from the one behind it; around the level.
        let from = match best == level {
            true if self.turn_left > 0 => at,
            true => at.saturating_add(1),
            false => 0,
        };
        let around = self.ready.range((best, from, 0)..);
        let (priority, arrival, index) = around
            .take_while(|(priority, _, _)| *priority == best)
            .next()
            .or_else(|| self.ready.first())
            .copied()?;
        if (priority, arrival) != self.turn || self.turn_left == 0 {
            self.turn = (priority, arrival);
            self.turn_left = turn_size.max(1);
        }
        self.turn_left -= 1;
        Some(index)
    }

    /// The next entry begins a new turn.
    pub(super) fn end_turn(&mut self) {
        self.turn_left = 0;
    }

    /// What everybody was granted and sent.
    pub(super) fn books(&self) -> impl Iterator<Item = Books> + '_ {
        self.iter().map(|(_, consumer)| {
            let (granted, _, reclaimed) = consumer.account.books();
            Books {
                client: consumer.client,
                granted,
                delivered: consumer.delivered,
                reclaimed,
                balance: consumer.account.balance(),
                total: self.total,
            }
        })
    }

    /// What does not add up, if anything.
    pub(super) fn audit(&self) -> Result<(), String> {
        let mut total = 0;
        for (index, consumer) in self.iter() {
            consumer
                .account
                .audit()
                .map_err(|error| format!("consumer {} ({index}): {error}", consumer.name))?;
            let (_, spent, _) = consumer.account.books();
            if spent != consumer.delivered {
                return Err(format!(
                    "consumer {} ({index}) was charged {spent} and sent {}",
                    consumer.name, consumer.delivered
                ));
            }
            total += consumer.account.balance();
            let listed = self.ready.contains(&consumer.key(index));
            if listed != consumer.available() {
                return Err(format!("in the ready list: {listed}; {consumer:?}"));
            }
            if self.blocked.contains(&index) != consumer.blocked {
                return Err(format!("not as in the list of the blocked: {consumer:?}"));
            }
        }
        if total != self.total {
            return Err(format!("the total is {}, the sum {total}", self.total));
        }
        let stale = self.ready.len() > self.len() || self.blocked.len() > self.len();
        if stale {
            return Err("somebody gone is ready or blocked".into());
        }
        Ok(())
    }
}
