"""From runs to figures: which runs count, their medians, and who was saturated."""

import statistics
from dataclasses import dataclass, field

VALID, INVALID, INTERRUPTED, FAILED = "valid", "invalid", "interrupted", "failed"

# A core counts as busy from this share on.
BUSY = 0.9
# Offered load counts as carried from this share on.
CARRIED = 0.99

NOT_OBSERVED = "not observed"


@dataclass
class Run:
    """One run of the load. `figures` maps names to numbers; None is what could not be measured."""

    variant: str
    rate: int | None
    repetition: int
    state: str
    reason: str = ""
    file: str = ""
    figures: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    def text(self, digits):
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f} - {self.high:,.{digits}f}]"


def spread(values):
    """Median, least and most of what was measured; None of nothing."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def saturation(figures, p99_limit_ms):
    """Who could not do more: a list of 'broker' and 'load', or ['unknown'] where neither core was busy; empty if the load was carried.

    A run is saturated if less than 99 % of what was offered was done, or if the publish p99, counted from when a message was due, is
    above the limit: then messages queue. Whose core was 90 % busy is who was saturated.
    """
    offered, achieved, p99 = figures.get("offered"), figures.get("achieved"), figures.get("publish_p99")
    if not offered:
        return []
    behind = achieved is not None and achieved < CARRIED * offered
    queues = p99 is not None and p99 > p99_limit_ms
    if not (behind or queues):
        return []
    shares = (("broker", figures.get("broker_share")), ("load", figures.get("load_share")))
    return [side for side, share in shares if share is not None and share >= BUSY] or ["unknown"]


def cells(runs):
    """Runs by variant and rate, in the order in which these first appear; rates ascend within a variant."""
    variants = list(dict.fromkeys(run.variant for run in runs))
    rates = sorted({run.rate for run in runs}, key=lambda rate: rate or 0)
    grouped = {(variant, rate): [run for run in runs if (run.variant, run.rate) == (variant, rate)] for rate in rates for variant in variants}
    return {key: group for key, group in grouped.items() if group}


def summary(runs, p99_limit_ms):
    """Figures of the valid runs of one cell. All others are counted as excluded and enter nothing."""
    valid = [run for run in runs if run.state == VALID]
    names = list(dict.fromkeys(name for run in valid for name in run.figures))
    figures = {name: spread([run.figures.get(name) for run in valid]) for name in names}
    saturated = [saturation(run.figures, p99_limit_ms) for run in valid]
    sides = sorted({side for run in saturated for side in run})
    return {
        "valid": len(valid),
        "excluded": len(runs) - len(valid),
        "figures": figures,
        "saturated": {"runs": sum(bool(run) for run in saturated), "sides": sides},
        "throttled": throttled([run.figures.get("throttled_samples") for run in valid]),
    }


def throttled(samples):
    """Samples of the limiter's state that found it throttling. Zero is no proof that it never did: it was not observed."""
    known = [value for value in samples if value is not None]
    if not known:
        return None
    return f"{sum(known):.0f} samples" if sum(known) else NOT_OBSERVED


def excluded(runs):
    """What does not count, and why."""
    return [run for run in runs if run.state != VALID]


def all_valid(runs, planned):
    """Whether everything that was planned was run, and counts."""
    return len(runs) == planned and all(run.state == VALID for run in runs)
