//! The publish rates that all cores share, by name.

use crate::engine::SharedRates;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use vela_limiter::SharedRate;

/// One broker rate, and one for each resource group that was ever asked for.
#[derive(Debug)]
pub struct RateTable {
    broker: Arc<SharedRate>,
    groups: Mutex<BTreeMap<String, Arc<SharedRate>>>,
}

impl Default for RateTable {
    fn default() -> Self {
        Self {
            broker: unlimited(),
            groups: Mutex::default(),
        }
    }
}

fn unlimited() -> Arc<SharedRate> {
    Arc::new(SharedRate::new(0, 0, 0))
}

impl SharedRates for RateTable {
    fn broker(&self) -> Arc<SharedRate> {
        Arc::clone(&self.broker)
    }

    fn group(&self, name: &str) -> Arc<SharedRate> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(groups.entry(name.to_owned()).or_insert_with(unlimited))
    }
}
