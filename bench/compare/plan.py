"""What is run, and in which order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One start of one broker: it is warmed up if it has to be, measured at each rate, and stopped."""

    variant: str
    repetition: int
    rates: tuple

    def name(self, rate):
        """Stem of the files of one run; sorts by repetition."""
        return f"{self.repetition}-{self.variant}" + (f"-{rate}" if rate else "")


def turns(variants, repetitions, rates):
    """Every variant once per repetition; each repetition begins with another one, so that none always has the same neighbours in
    time: what changes on the machine meanwhile meets all of them. Rates ascend, so that a saturated broker is measured last."""
    rates = tuple(sorted(rates)) or (None,)
    order = []
    for repetition in range(repetitions):
        shift = repetition % len(variants)
        for variant in [*variants[shift:], *variants[:shift]]:
            order.append(Turn(variant, repetition + 1, rates))
    return order


# Windows that have to agree: two may do so while the JIT compiler still has its best code to make.
AGREEING = 3


def settled(costs, within):
    """Whether a message cost the same in the last windows of a warm-up: from each to the next by less than the share `within`."""
    last = costs[-AGREEING:]
    return len(last) == AGREEING and all(before > 0 and abs(after - before) / before < within for before, after in zip(last, last[1:]))
