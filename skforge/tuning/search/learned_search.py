"""Search by a cost model: partial points of a space, sampled by their structure.

The algorithm of *Learning to Schedule Halide Pipelines for the GPU* (§3, §6). A state
is a point of a ``ScheduleSpace`` whose first parameters are set, in
the order of the decisions: tiling, order, mapping, cache, walk, representation,
reduction. States that a beam's states lead to are put in buckets by a structural hash;
of each bucket of ``B`` only ``log2(B)``, drawn at random, are judged by the model, and
the best go on. A search has passes, and the hash sees one decision more in each: what
did badly in one pass is a warning in the next.

A state is worth what the best of a few whole points is that it may become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import Any, TypeAlias

import numpy as np

from skforge.tuning.space.space import ScheduleSpace

Key: TypeAlias = tuple[Any, ...]

#: What decides what, by the names of parameters of the spaces there are; all other
#: parameters are decided last.
DECISIONS: dict[str, tuple[str, ...]] = {
    "order": ("walk", "schedule"),
    "tiling": (
        "block",
        "tree_tiles",
        "rows_per_block",
        "rows_per_thread",
        "tree_threads",
    ),
    "mapping": ("parallel",),
    "cache": ("codes", "prefetch", "cache_rows", "cache_trees"),
    "walk": ("hops", "in_flight", "interleave", "unroll_walks"),
    "representation": ("layout", "representation", "node_tile"),
    "reduction": ("shared_reduce",),
}

#: States with a cost this many times the best are a warning to all of their hash.
POOR = 2.0

#: Whole points that a state is judged by.
COMPLETIONS = 3

#: Values that are tried before a partial point is given up as without completion.
MOST_TRIES = 400

#: Returns what whole points cost, and infinity for those that are no use.
Judge = Callable[[Sequence[Mapping[str, Any]]], Sequence[float]]

#: A constraint: its test, the names it takes, and their places among the decisions.
_Rule: TypeAlias = tuple[Callable[..., bool], tuple[str, ...], list[int]]


@dataclass(slots=True)
class Found:
    """All whole points that were judged, with what they cost.

    ``samples`` are the ends of searches, ``points`` these and all that states were
    judged by.
    """

    points: dict[Key, float] = field(default_factory=dict)
    samples: dict[Key, float] = field(default_factory=dict)


class LearnedSearch:
    """Searches of one space.

    Parameters
    ----------
    space : ScheduleSpace
        What is searched.
    judge : callable
        Costs of whole points.
    random : numpy Generator
        All chance.
    frozen : mapping of str to object
        Parameters that are not searched.
    """

    def __init__(
        self,
        space: ScheduleSpace,
        judge: Judge,
        random: np.random.Generator,
        frozen: Mapping[str, Any] | None = None,
    ) -> None:
        self.space = space
        self._judge, self._random = judge, random
        values = space.parameters | {k: (v,) for k, v in (frozen or {}).items()}
        self._depth = {
            name: depth
            for depth, names in enumerate(DECISIONS.values())
            for name in names
        }
        last = len(DECISIONS)
        self.names = sorted(values, key=lambda name: self._depth.get(name, last))
        self._values = {name: values[name] for name in self.names}
        place = {name: i for i, name in enumerate(self.names)}
        # By the place of the last parameter that they look at.
        self._rules: list[list[_Rule]] = [[] for _ in self.names]
        for rule in space.constraints:
            looked = [place[name] for name in rule.names]
            self._rules[max(looked)].append((rule.test, rule.names, looked))
        self.found = Found()
        self._best: tuple[float, Key | None] = float("inf"), None
        self._warnings: dict[Key, int] = {}

    def point(self, key: Key) -> dict[str, Any]:
        """Return a whole point by its key."""
        return dict(zip(self.names, key, strict=True))

    @property
    def best(self) -> dict[str, Any] | None:
        """The cheapest whole point so far."""
        return None if self._best[1] is None else self.point(self._best[1])

    # ------------------------------------------------------------------ samples

    def beam(self, size: int, passes: int) -> Key | None:
        """Search with a beam, in passes of ever deeper hashes; return the best."""
        best: Key | None = None
        for depth in range(1, passes + 1):
            ended = self._pass(size, depth)
            if ended is not None and (
                best is None or self.found.points[ended] < self.found.points[best]
            ):
                best = ended
        return best

    def greedy(self, n: int) -> None:
        """Search ``n`` times with a beam of one state, in one pass."""
        for _ in range(n):
            self._pass(1, 1)

    def _pass(self, size: int, depth: int) -> Key | None:
        states: list[Key] = [()]
        for place in range(len(self.names)):
            buckets: dict[Key, list[Key]] = {}
            for state in states:
                for child in self._children(state):
                    bucket = (*self._hash(state, depth), self._seen(child, depth))
                    buckets.setdefault(bucket, []).append(child)
            chosen = [s for bucket in buckets.values() for s in self._some(bucket)]
            judged = self._costs(chosen)
            for state, cost in judged:
                self._warn(state, cost, depth)
            order = sorted(
                (cost * (1 + self._warnings.get(self._hash(s, depth), 0)), i)
                for i, (s, cost) in enumerate(judged)
                if np.isfinite(cost)
            )
            states = [judged[i][0] for _, i in order[:size]]
            if not states:
                return None
            if place == len(self.names) - 1:
                break
        for state in states:
            self.found.samples[state] = self.found.points[state]
        return min(states, key=lambda s: self.found.points[s])

    def _some(self, bucket: list[Key]) -> Iterator[Key]:
        """Yield ``log2(B)`` of a bucket of ``B``, and one at least."""
        keep = max(1, round(log2(len(bucket)))) if len(bucket) > 1 else 1
        for i in self._random.choice(len(bucket), keep, replace=False):
            yield bucket[int(i)]

    def _warn(self, state: Key, cost: float, depth: int) -> None:
        if cost > POOR * self._best[0]:
            key = self._hash(state, depth + 1)
            self._warnings[key] = self._warnings.get(key, 0) + 1

    def _hash(self, state: Key, depth: int) -> Key:
        """Return the structure of a state: what its first ``depth`` decisions are."""
        last = len(DECISIONS)
        kept = (
            value
            for name, value in zip(self.names, state, strict=False)
            if self._depth.get(name, last) < depth
        )
        return (len(state), *kept)

    def _seen(self, child: Key, depth: int) -> Any:
        """Return the last value of a state if hashes of that depth look at it."""
        name = self.names[len(child) - 1]
        return child[-1] if self._depth.get(name, len(DECISIONS)) < depth else None

    # ------------------------------------------------------------------ judging

    def _costs(self, states: Sequence[Key]) -> list[tuple[Key, float]]:
        """Return states with the cost of the best point that each may become."""
        guides = self._guides()
        ends: list[list[Key]] = []
        fresh: dict[Key, None] = {}
        for state in states:
            points = list(
                dict.fromkeys(
                    end
                    for guide in guides
                    if (end := self._completed(state, guide)) is not None
                )
            )
            ends.append(points)
            fresh |= {p: None for p in points if p not in self.found.points}
        costs = self._judge([self.point(key) for key in fresh])
        for key, cost in zip(fresh, map(float, costs), strict=True):
            self.found.points[key] = cost
            if cost < self._best[0]:
                self._best = cost, key
        return [
            (state, min(self.found.points[p] for p in points))
            for state, points in zip(states, ends, strict=True)
            if points
        ]

    def _guides(self) -> list[Mapping[str, Any]]:
        """Return values that completions prefer: those of the best, and of chance."""
        guides: list[Mapping[str, Any]] = []
        if self._best[1] is not None:
            guides.append(self.point(self._best[1]))
        while len(guides) < COMPLETIONS:
            draws = self._random.random(len(self.names)).tolist()
            guides.append(
                {
                    name: values[int(draw * len(values))]
                    for draw, (name, values) in zip(
                        draws, self._values.items(), strict=True
                    )
                }
            )
        return guides

    def _children(self, state: Key) -> Iterator[Key]:
        name = self.names[len(state)]
        for value in self._values[name]:
            child = (*state, value)
            if self._obeys(child):
                yield child

    def _completed(self, state: Key, guide: Mapping[str, Any]) -> Key | None:
        """Return a whole point that begins like a state, near a guide."""
        tries = 0

        def walk(key: Key) -> Key | None:
            nonlocal tries
            if len(key) == len(self.names):
                return key
            name = self.names[len(key)]
            wanted = guide[name]
            for value in (wanted, *(v for v in self._values[name] if v != wanted)):
                tries += 1
                if tries > MOST_TRIES:
                    return None
                child = (*key, value)
                if self._obeys(child):
                    end = walk(child)
                    if end is not None:
                        return end
            return None

        return walk(state)

    def _obeys(self, key: Key) -> bool:
        """Whether a state obeys the rules about its last parameter."""
        for test, names, places in self._rules[len(key) - 1]:
            given = [key[place] for place in places]
            if not test(**dict(zip(names, given, strict=True))):
                return False
        return True
