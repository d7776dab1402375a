//! Vela.
