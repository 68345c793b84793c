"""Numbers from integer hashes: the same on every machine, whatever the version of numpy."""

import numpy as np


def splitmix64(counters):
    """The finaliser of SplitMix64 over an array of uint64 counters."""
    z = counters * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seed, count):
    """`count` float32 values in [-1, 1), each a multiple of 2^-23, and so exact."""
    counters = np.arange(count, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
    steps = (splitmix64(counters) >> np.uint64(40)).astype(np.int64)
    return ((steps - (1 << 23)) / np.float64(1 << 23)).astype(np.float32)


class Draws:
    """A stream of small integers and of choices."""

    def __init__(self, seed, capacity=1 << 18):
        counters = np.arange(capacity, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
        self._values = iter((splitmix64(counters) >> np.uint64(33)).tolist())

    def below(self, bound):
        return next(self._values) % bound

    def pick(self, options):
        return options[self.below(len(options))]
