//! Requests that wait for their answers.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::lookup::Owner;
use super::{ConnKey, ConsumerKey, Nanos, ProducerKey};

/// Whose request it is, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// LOOKUP.
    Lookup(Owner),
    /// What opens a producer or watch, or asks a question.
    Open(Owner),
    /// CLOSE_PRODUCER, for good.
    CloseProducer(ProducerKey),
    /// CLOSE_PRODUCER, to be opened again.
    ReopenProducer(ProducerKey),
    /// Whatever a consumer asks.
    Consumer(ConsumerKey),
    /// An answer of interest to nobody.
    Ignored,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    conn: ConnKey,
    /// 0: as long as it takes.
    deadline: Nanos,
}

/// All unanswered requests of the client. All have the same time, so the oldest is due first.
#[derive(Debug)]
pub(crate) struct Requests {
    timeout: Nanos,
    next: u64,
    waiting: FxHashMap<u64, Waiting>,
    order: VecDeque<(Nanos, u64)>,
}

impl Requests {
    pub(crate) fn new(timeout: Nanos) -> Self {
        Self {
            timeout,
            next: 0,
            waiting: FxHashMap::default(),
            order: VecDeque::new(),
        }
    }

    /// A new request id.
    pub(crate) fn add(&mut self, now: Nanos, conn: ConnKey, request: Request) -> u64 {
        let (id, deadline) = (self.next, now.saturating_add(self.timeout));
        self.next += 1;
        self.waiting.insert(
            id,
            Waiting {
                request,
                conn,
                deadline,
            },
        );
        self.order.push_back((deadline, id));
        id
    }

    /// An answer has come.
    pub(crate) fn take(&mut self, conn: ConnKey, id: u64) -> Option<Request> {
        if self.waiting.get(&id)?.conn != conn {
            return None;
        }
        let taken = self.waiting.remove(&id).map(|waiting| waiting.request);
        self.trim();
        taken
    }

    /// The answer is that another one will come, whenever.
    pub(crate) fn keep(&mut self, conn: ConnKey, id: u64, request: Request) {
        let deadline = 0;
        self.waiting.insert(
            id,
            Waiting {
                request,
                conn,
                deadline,
            },
        );
    }

    /// Forgets the requests for which `which` is true.
    pub(crate) fn forget(&mut self, which: impl Fn(Request) -> bool) {
        self.waiting.retain(|_, waiting| !which(waiting.request));
    }

    /// Takes what was asked on a connection that is gone, in the order it was asked.
    pub(crate) fn lost(&mut self, conn: ConnKey) -> Vec<(u64, Request)> {
        let mut lost: Vec<_> = self
            .waiting
            .extract_if(|_, waiting| waiting.conn == conn)
            .map(|(id, waiting)| (id, waiting.request))
            .collect();
        lost.sort_unstable_by_key(|&(id, _)| id);
        self.trim();
        lost
    }

    /// Takes a request whose time is over.
    pub(crate) fn overdue(&mut self, now: Nanos) -> Option<(u64, ConnKey, Request)> {
        while let Some(&(deadline, id)) = self.order.front()
            && deadline <= now
        {
            self.order.pop_front();
            if self
                .waiting
                .get(&id)
                .is_some_and(|waiting| waiting.deadline == deadline)
                && let Some(waiting) = self.waiting.remove(&id)
            {
                return Some((id, waiting.conn, waiting.request));
            }
        }
        None
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.order.front().map(|&(deadline, _)| deadline)
    }

    /// Drops what was answered from the front, so that `order` stays as short as what is asked.
    fn trim(&mut self) {
        while let Some(&(deadline, id)) = self.order.front()
            && self
                .waiting
                .get(&id)
                .is_none_or(|waiting| waiting.deadline != deadline)
        {
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_find_their_requests_and_the_rest_times_out() {
        let (one, other) = (ConnKey(1), ConnKey(2));
        let mut requests = Requests::new(100);
        let first = requests.add(0, one, Request::Consumer(ConsumerKey(1)));
        let second = requests.add(10, one, Request::CloseProducer(ProducerKey(2)));
        let third = requests.add(20, other, Request::Ignored);
        assert_eq!(
            requests.take(other, first),
            None,
            "another connection's answer"
        );
        assert_eq!(
            requests.take(one, first),
            Some(Request::Consumer(ConsumerKey(1)))
        );
        assert_eq!(requests.take(one, first), None, "only once");
        assert_eq!(requests.poll_timeout(), Some(110));
        assert_eq!(requests.overdue(109), None);
        assert_eq!(
            requests.overdue(110),
            Some((second, one, Request::CloseProducer(ProducerKey(2))))
        );
        assert_eq!(requests.lost(other), vec![(third, Request::Ignored)]);
        assert_eq!(requests.poll_timeout(), None);
    }

    #[test]
    fn what_is_kept_has_no_time() {
        let conn = ConnKey(1);
        let mut requests = Requests::new(100);
        let id = requests.add(0, conn, Request::Ignored);
        let request = requests.take(conn, id).unwrap_or(Request::Ignored);
        requests.keep(conn, id, request);
        assert_eq!(requests.overdue(1_000), None);
        assert_eq!(requests.take(conn, id), Some(Request::Ignored));
    }
}
