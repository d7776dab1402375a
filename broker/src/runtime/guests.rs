//! How many connections there are, in all and per address, against the broker's limits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Limits on the number of connections. 0: no limit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// Of the whole broker: `brokerMaxConnections`.
    pub(super) connections: u64,
    /// Of one address: `brokerMaxConnectionsPerIp`.
    pub(super) per_address: u64,
    /// The descriptor from which on sockets are not kept.
    pub(super) descriptors: u64,
}

#[derive(Debug, Default)]
struct Counts {
    all: u64,
    by_address: HashMap<IpAddr, u64>,
}

/// The connections of the broker. Touched when one comes and when one goes, never in between.
#[derive(Debug, Default)]
pub(super) struct Guests {
    counts: Mutex<Counts>,
}

/// One connection's place. Dropping it makes room.
#[derive(Debug)]
pub(super) struct Ticket {
    guests: Arc<Guests>,
    address: IpAddr,
}

impl Guests {
    /// A place for a connection from `address`.
    ///
    /// # Errors
    /// The name and value of the limit that is reached.
    pub(super) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        limits: Limits,
    ) -> Result<Ticket, (&'static str, u64)> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.connections > 0 && counts.all >= limits.connections {
            return Err(("brokerMaxConnections", limits.connections));
        }
        let here = counts.by_address.get(&address).copied().unwrap_or(0);
        if limits.per_address > 0 && here >= limits.per_address {
            return Err(("brokerMaxConnectionsPerIp", limits.per_address));
        }
        counts.all += 1;
        counts.by_address.insert(address, here + 1);
        Ok(Ticket {
            guests: Arc::clone(self),
            address,
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self
            .guests
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        counts.all = counts.all.saturating_sub(1);
        if let Some(here) = counts.by_address.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn limits_hold_until_somebody_leaves() {
        let guests = Arc::new(Guests::default());
        let limits = Limits {
            connections: 3,
            per_address: 2,
            ..Limits::default()
        };
        let [a, b] = ["127.0.0.1", "127.0.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let first = guests.admit(a, limits).unwrap();
        let _second = guests.admit(a, limits).unwrap();
        assert_eq!(
            guests.admit(a, limits).unwrap_err(),
            ("brokerMaxConnectionsPerIp", 2)
        );
        let _third = guests.admit(b, limits).unwrap();
        assert_eq!(
            guests.admit(b, limits).unwrap_err(),
            ("brokerMaxConnections", 3)
        );
        drop(first);
        let _again = guests.admit(a, limits).unwrap();
        assert_eq!(guests.counts.lock().unwrap().by_address.len(), 2);
    }
}
