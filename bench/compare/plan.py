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


def settled(costs, within):
    """Whether the last two windows of a warm-up cost the same per message, but for the share `within`."""
    if len(costs) < 2 or not costs[-2]:
        return False
    return abs(costs[-1] - costs[-2]) / costs[-2] < within
