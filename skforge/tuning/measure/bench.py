"""Runners timed against each other: interleaved rounds, ratios within a round.

The default schedule is the yardstick: it is timed in every round beside whatever else
is, so that what slows the machine for a while slows both, and candidates that were
timed minutes apart compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from numpy.typing import NDArray

from skforge.tuning.measure.measure import Runner

T = TypeVar("T")

#: A candidate that is this many times slower than the best is given up after a look,
#: and by this much after two samples.
HOPELESS, POOR = 3.0, 1.5

#: Samples that a runner has even if time is up.
FEWEST = 3

#: Calls of one sample at most.
MOST_ROUNDS = 1 << 16


@dataclass(frozen=True, slots=True)
class Sampled:
    """Times of one runner at one batch size."""

    samples: tuple[float, ...]  # seconds of a call
    ratios: tuple[float, ...]  # each by the yardstick's in the same round
    stopped: str = ""  # why it was given up, if it was

    @property
    def relative(self) -> float:
        """The median ratio."""
        return median(self.ratios)


class Bench:
    """Batches of one size, and the yardstick; a sample takes about ``slot`` seconds."""

    def __init__(
        self, batches: Sequence[NDArray[Any]], yardstick: Runner, slot: float
    ) -> None:
        self._batches, self._yardstick, self._slot = batches, yardstick, slot
        self._rounds: dict[int, int] = {}
        self._look(yardstick)  # cold
        self._look(yardstick)
        #: Seconds of a call of the yardstick, as they come.
        self.baseline: list[float] = [self._sample(yardstick) for _ in range(3)]

    def compare(
        self,
        runner: Runner,
        samples: int,
        best: float,
        late: Callable[[], bool] = lambda: False,
    ) -> Sampled:
        """Time a runner beside the yardstick, in so many interleaved samples.

        It is given up if it is far worse than the ratio ``best``. When ``late`` says
        that time is up, ``FEWEST`` samples have to do.
        """
        standard = median(self.baseline)
        seconds = self._look(runner)
        if seconds > HOPELESS * best * standard:
            # once more: the first look is cold, or something else ran meanwhile
            seconds = min(seconds, self._look(runner))
            if seconds > HOPELESS * best * standard:
                ratio = seconds / standard
                text = f"one call took {ratio:.1f} times the default's"
                return Sampled((seconds,), (ratio,), text)
        taken: list[float] = []
        ratios: list[float] = []
        for number in range(samples):
            if number >= FEWEST and late():
                break
            base, one = self._pair(runner, number % 2 == 1)
            self.baseline.append(base)
            taken.append(one)
            ratios.append(one / base)
            if number == 1 < samples - 1 and min(ratios) > POOR * best:
                text = (
                    f"two samples took {min(ratios):.2f} times the default's, or more"
                )
                return Sampled(tuple(taken), tuple(ratios), text)
        return Sampled(tuple(taken), tuple(ratios))

    def together(
        self,
        runners: Mapping[T, Runner],
        samples: int,
        late: Callable[[], bool] = lambda: False,
    ) -> dict[T, Sampled]:
        """Time several runners and the yardstick in rounds; each begins elsewhere."""
        names = list(runners)
        taken: dict[T, list[float]] = {name: [] for name in names}
        ratios: dict[T, list[float]] = {name: [] for name in names}
        for runner in runners.values():
            self._look(runner)
        for number in range(samples):
            if number >= FEWEST and late():
                break
            base = self._sample(self._yardstick)
            self.baseline.append(base)
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                one = self._sample(runners[name])
                taken[name].append(one)
                ratios[name].append(one / base)
        return {n: Sampled(tuple(taken[n]), tuple(ratios[n])) for n in names}

    def _pair(self, runner: Runner, swapped: bool) -> tuple[float, float]:
        if swapped:
            one = self._sample(runner)
            return self._sample(self._yardstick), one
        base = self._sample(self._yardstick)
        return base, self._sample(runner)

    def _look(self, runner: Runner) -> float:
        """Time the batches once, to warm up and to see how often they fill a slot."""
        seconds = max(1e-9, runner.time(self._batches, 1))
        fit = int(self._slot / (seconds * len(self._batches)))
        self._rounds[id(runner)] = max(1, min(MOST_ROUNDS, fit))
        return seconds

    def _sample(self, runner: Runner) -> float:
        rounds = self._rounds.get(id(runner), 1)
        return max(1e-9, runner.time(self._batches, rounds))
