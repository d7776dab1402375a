//! The atomics and the one lock: loom's when a model runs, the standard library's otherwise.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicI64, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicI64, AtomicU64, Ordering},
};
