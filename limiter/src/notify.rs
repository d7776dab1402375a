//! Tells cores that something changed. A notification carries nothing: the core reads the latest state when
//! it runs, so that two changes in a row are one look, and an old notification can never bring back an old state.

use crate::pending::Pending;
use crate::sync::Mutex;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

struct Entry {
    pending: Pending,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A core's end. Dropping it ends the notifications.
pub struct Listener(Arc<Entry>);

impl Listener {
    /// Called by the core *before* it reads the state. True: there was a change since it last began.
    pub fn begin(&self) -> bool {
        self.0.pending.begin()
    }

    /// A cheap look: whether there is a change to begin with.
    #[must_use]
    pub fn is_notified(&self) -> bool {
        self.0.pending.is_raised()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.0.pending).finish()
    }
}

/// All listeners. The lock guards only the list: it is taken to register and, after a change of state, to copy
/// the list; never on the way of a message, and never while a listener is called.
pub(crate) struct Listeners {
    list: Mutex<Vec<Weak<Entry>>>,
}

impl Listeners {
    pub(crate) fn new() -> Self {
        Self {
            list: Mutex::new(Vec::new()),
        }
    }

    /// Adds a listener, which is notified from the start: a core that registers while the state changes either
    /// is on the list when the change copies it, or reads the state after the change.
    pub(crate) fn register(&self, wake: Box<dyn Fn() + Send + Sync>) -> Listener {
        let entry = Arc::new(Entry {
            pending: Pending::new(),
            wake,
        });
        {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.retain(|known| known.strong_count() > 0);
            list.push(Arc::downgrade(&entry));
        }
        notify(&entry);
        Listener(entry)
    }

    /// Wakes every listener that has no notification pending.
    pub(crate) fn notify(&self) {
        let entries: Vec<_> = {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.iter().filter_map(Weak::upgrade).collect()
        };
        for entry in entries {
            notify(&entry);
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").finish_non_exhaustive()
    }
}

fn notify(entry: &Entry) {
    if entry.pending.raise() {
        (entry.wake)();
    }
}
