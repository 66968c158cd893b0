"""Time calls against each other: interleaved rounds, medians, ratios in a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of several functions, one sample per round.

    Parameters
    ----------
    samples : Mapping[str, tuple[float, ...]]
        Sample ``i`` of every call was taken in the same round.
    """

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
    """Time calls against each other.

    Parameters
    ----------
    calls : Mapping[str, Callable]
        The functions to time, by name. Each is called once before the clock starts.
    rounds : int, default=11
        Samples of each call; at least 3 are taken, regardless of ``seconds``.
    seconds : float, default=1.0
        Approximate total time, shared equally between the samples.
    clock : Callable, default=time.perf_counter
        Returns the time in seconds.

    Returns
    -------
    Timing
        The samples of every call.

    Examples
    --------
    >>> timing = interleave({"a": lambda: sum(range(9))}, rounds=3, seconds=0.01)
    >>> len(timing.samples["a"]), timing.speedup("a", over="a")
    (3, 1.0)
    """
    slot = seconds / max(1, rounds * len(calls))
    repeats = {name: _repeats(call, slot, clock) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = clock() + 2 * seconds
    for number in range(rounds):
        if number >= 3 and clock() > end:
            break
        for name in _rotated(list(calls), number):
            samples[name].append(_sample(calls[name], repeats[name], clock))
    return Timing({name: tuple(taken) for name, taken in samples.items()})


def _rotated(names: list[str], by: int) -> Iterator[str]:
    """Yield the names rotated by ``by``, so that the order changes each round."""
    for i in range(len(names)):
        yield names[(i + by) % len(names)]


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
