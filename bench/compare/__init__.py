"""Compares brokers and variants of one broker by the runs of `vela-bench run`; see scripts/compare."""
