"""Time calls against each other: interleaved rounds, medians, ratios in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

from skforge.tuning.measure.bench import in_rounds

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of several functions, one sample per round."""

    samples: Mapping[str, tuple[float, ...]]

    def seconds(self, name: str) -> float:
        """Return the median seconds of one call."""
        return median(self.samples[name])

    def speedup(self, name: str, over: str) -> float:
        """Return the speedup of ``name``: the median of the ratios in each round.

        The calls of a round run next to each other, so a slow phase of the machine
        slows both.
        """
        pairs = zip(self.samples[over], self.samples[name], strict=True)
        return median(slow / fast for slow, fast in pairs)


def interleave(
    calls: Mapping[str, Call],
    *,
    rounds: int = 11,
    seconds: float = 1.0,
    clock: Callable[[], float] = perf_counter,
) -> Timing:
    """Time calls against each other in ``rounds``, at least 3, and ``seconds``.

    Each is called before the clock starts. The samples share the time equally.

    >>> timing = interleave({"a": lambda: sum(range(9))}, rounds=3, seconds=0.01)
    >>> len(timing.samples["a"]), timing.speedup("a", over="a")
    (3, 1.0)
    """
    slot = seconds / max(1, rounds * len(calls))
    timed = {
        name: partial(_sample, call, _repeats(call, slot, clock), clock)
        for name, call in calls.items()
    }
    end = clock() + 2 * seconds
    taken = in_rounds(timed, rounds, lambda: clock() > end)
    return Timing({name: tuple(samples) for name, samples in taken.items()})


def _repeats(call: Call, slot: float, clock: Callable[[], float]) -> int:
    """Return the number of calls that fill a slot; this also warms up the machine."""
    call()
    repeats = 1
    while True:
        taken = _sample(call, repeats, clock) * repeats
        if taken >= slot / 2 or repeats >= 1 << 24:
            return repeats
        # Too short to measure: grow at least twofold, at most tenfold.
        repeats *= max(2, min(10, round(slot / max(taken, 1e-9))))


def _sample(call: Call, repeats: int, clock: Callable[[], float]) -> float:
    loop = range(repeats)
    start = clock()
    for _ in loop:
        call()
    return (clock() - start) / repeats
