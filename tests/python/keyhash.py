"""Which consumer of a Key_Shared subscription a key belongs to, computed as Apache Pulsar computes it."""

import bisect


def murmur3(data):
    """Murmur3, 32 bits, seed 0, without its sign bit."""
    mask = 0xFFFFFFFF

    def scramble(word):
        word = word * 0xCC9E2D51 & mask
        return (word << 15 | word >> 17) * 0x1B873593 & mask

    value, whole = 0, len(data) & ~3
    for at in range(0, whole, 4):
        value ^= scramble(int.from_bytes(data[at : at + 4], "little"))
        value = (value << 13 | value >> 19) & mask
        value = value * 5 + 0xE6546B64 & mask
    if tail := data[whole:]:
        value ^= scramble(int.from_bytes(tail, "little"))
    value ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ value >> shift) * factor & mask
    return value & 0x7FFFFFFF


def ring_slot(key):
    """The slot of a key when consumers share a ring: 1 to 65535."""
    return murmur3(key) % 65535 + 1


def range_slot(key):
    """The slot of a key among ranges: 1 to 65535."""
    return murmur3(key) % 65536 or 1


class Ring:
    """The ring of consumers with these names, in the order in which they came. No name twice."""

    def __init__(self, *names):
        points = {}
        for name in names:
            for number in range(100):
                points.setdefault(ring_slot(f"{name}\0000\000{number}".encode()), name)
        self.points = sorted(points.items())

    def owner(self, key):
        at = bisect.bisect_left(self.points, (ring_slot(key), ""))
        return self.points[at % len(self.points)][1]


def keys_of(ring, name, count, without=()):
    """Keys that belong to a consumer."""
    found = (b"key-%d" % n for n in range(1_000_000))
    keys = (key for key in found if ring.owner(key) == name and key not in without)
    return [next(keys) for _ in range(count)]


