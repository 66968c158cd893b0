"""Time calls against each other in interleaved rounds, as ratios within a round.

In a search, the default schedule is the yardstick, timed in every round. A slow phase
of the machine slows both runners, so candidates timed minutes apart are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from skforge.tuning.measure.measure import Runner

T = TypeVar("T")

#: Give up a candidate this many times slower than the best: after one call, and after
#: two samples.
HOPELESS, POOR = 3.0, 1.5

#: Samples taken even if time is up.
FEWEST = 3

#: Maximum repetitions of the batches in one sample.
MOST_ROUNDS = 1 << 16


def in_rounds(
    calls: Mapping[T, Callable[[], float]], rounds: int, late: Callable[[], bool]
) -> dict[T, list[float]]:
    """Return what each call returns in every round; the order of the calls rotates.

    Once ``late`` returns True, ``FEWEST`` rounds are enough.
    """
    taken: dict[T, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        if number >= FEWEST and late():
            break
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            taken[name].append(calls[name]())
    return taken


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
            # If the machine is slow now, the default is slow, too.
            ratio = seconds / max(standard, self._look(self._yardstick))
            if ratio > HOPELESS * best:
                text = f"one call took {ratio:.1f} times as long as the default's"
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
                    f"two samples took at least {min(ratios):.2f} times as long as "
                    "the default's"
                )
                return Sampled(tuple(taken), tuple(ratios), text)
        return Sampled(tuple(taken), tuple(ratios))

    def together(
        self,
        runners: Mapping[T, Runner],
        samples: int,
        late: Callable[[], bool] = lambda: False,
    ) -> dict[T, Sampled]:
        """Time several runners and the yardstick in interleaved rounds."""
        for runner in runners.values():
            self._look(runner)
        calls = [partial(self._sample, r) for r in (self._yardstick, *runners.values())]
        base, *others = in_rounds(dict(enumerate(calls)), samples, late).values()
        self.baseline += base
        return {
            name: Sampled(
                tuple(taken), tuple(t / b for t, b in zip(taken, base, strict=True))
            )
            for name, taken in zip(runners, others, strict=True)
        }

    def _pair(self, runner: Runner, swapped: bool) -> tuple[float, float]:
        if swapped:
            one = self._sample(runner)
            return self._sample(self._yardstick), one
        base = self._sample(self._yardstick)
        return base, self._sample(runner)

    def _look(self, runner: Runner) -> float:
        """Time the batches twice, to warm up and to set the repetitions per sample."""
        seconds = max(1e-9, min(runner.time(self._batches, 1) for _ in range(2)))
        fit = int(self._slot / (seconds * len(self._batches)))
        self._rounds[id(runner)] = max(1, min(MOST_ROUNDS, fit))
        return seconds

    def _sample(self, runner: Runner) -> float:
        rounds = self._rounds.get(id(runner), 1)
        return max(1e-9, runner.time(self._batches, rounds))
