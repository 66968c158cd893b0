"""Time runners against each other in interleaved rounds, as ratios within a round.

The default schedule is the yardstick and is timed in every round. A slow phase of the
machine then slows both runners, so candidates timed minutes apart are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from numpy.typing import NDArray

from skforge.tuning.measure.measure import Runner

T = TypeVar("T")

#: Give up a candidate this many times slower than the best: after one call, and after
#: two samples.
HOPELESS, POOR = 3.0, 1.5

#: Samples taken even if time is up.
FEWEST = 3

#: Maximum repetitions of the batches in one sample.
MOST_ROUNDS = 1 << 16


@dataclass(frozen=True, slots=True)
class Sampled:
    """Times of one runner at one batch size."""

    samples: tuple[float, ...]  # seconds per call
    ratios: tuple[float, ...]  # each divided by the yardstick's in the same round
    stopped: str = ""  # the reason if timing ended early

    @property
    def relative(self) -> float:
        """The median ratio."""
        return median(self.ratios)


class Bench:
    """Times runners on batches of one size; a sample takes about ``slot`` seconds."""

    def __init__(
        self, batches: Sequence[NDArray[Any]], yardstick: Runner, slot: float
    ) -> None:
        self._batches, self._yardstick, self._slot = batches, yardstick, slot
        self._rounds: dict[int, int] = {}
        self._look(yardstick)  # cold
        self._look(yardstick)
        #: Seconds per call of the yardstick, in the order measured.
        self.baseline: list[float] = [self._sample(yardstick) for _ in range(3)]

    def compare(
        self,
        runner: Runner,
        samples: int,
        best: float,
        late: Callable[[], bool] = lambda: False,
    ) -> Sampled:
        """Time a runner and the yardstick in ``samples`` interleaved samples.

        Stops early if the runner is far worse than the ratio ``best``. Once ``late``
        returns True, it stops after ``FEWEST`` samples.
        """
        standard = median(self.baseline)
        seconds = self._look(runner)
        if seconds > HOPELESS * best * standard:
            # repeat: the first call is cold, or another process interfered
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
        """Time several runners and the yardstick in rounds with rotating order."""
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
        """Time the batches once, to warm up and to set the repetitions per sample."""
        seconds = max(1e-9, runner.time(self._batches, 1))
        fit = int(self._slot / (seconds * len(self._batches)))
        self._rounds[id(runner)] = max(1, min(MOST_ROUNDS, fit))
        return seconds

    def _sample(self, runner: Runner) -> float:
        rounds = self._rounds.get(id(runner), 1)
        return max(1e-9, runner.time(self._batches, rounds))
