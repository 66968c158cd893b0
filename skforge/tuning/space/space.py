"""Schedule spaces: named parameters, constraints, and a template.

A point holds one value for each parameter. The template turns a point into a schedule
and gets facts about the forest, such as its depths for traversals without leaf checks.
The schedule language decides which schedules are legal.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from skforge._compat import cached_property
from skforge.compiler.cost.shape import ForestShape
from skforge.exceptions import InvalidInputError, ScheduleError
from skforge.forest.forest import Forest
from skforge.schedule.directives import MAX_WALK_DEPTH
from skforge.schedule.families import unchecked
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.trial import Candidate

Point: TypeAlias = Mapping[str, Any]
Template: TypeAlias = Callable[[Point, ForestShape], Schedule]
Apply: TypeAlias = Callable[[Schedule, Any], Schedule]

#: Largest space whose points are listed for counting and sampling. In larger spaces,
#: sampling draws combinations until enough satisfy the constraints.
LISTED = 300_000


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule that the points of a space satisfy."""

    names: tuple[str, ...]  # the parameters that the test takes
    #: Takes these by name; points for which it is false are excluded.
    test: Callable[..., bool]
    why: str = ""  # the rule as a sentence


def rule(test: Callable[..., bool], why: str = "") -> Constraint:
    return Constraint(tuple(inspect.signature(test).parameters), test, why)


@dataclass(frozen=True, slots=True)
class _Matters:
    """Tests whether a parameter has one of the values that its kind allows."""

    kind: str
    name: str
    allowed: Mapping[str, tuple[Any, ...]]

    def __call__(self, **chosen: Any) -> bool:
        return chosen[self.name] in self.allowed[chosen[self.kind]]


@dataclass(frozen=True, slots=True)
class Choices:
    """The values of each parameter, the first of which is a kind of schedule.

    ``free`` has, for each kind, the parameters with an effect and their values. Others
    have their first value.
    """

    values: Mapping[str, tuple[Any, ...]]
    free: Mapping[str, Mapping[str, tuple[Any, ...]]]

    @classmethod
    def of(cls, machine: str, values: Mapping[str, tuple[Any, ...]]) -> Choices:
        text = Path(__file__).with_name("effects.json").read_text("utf-8")
        kinds = json.loads(text)[machine].items()
        return cls(values, {k: {n: tuple(v) for n, v in f.items()} for k, f in kinds})

    def rules(self) -> tuple[Constraint, ...]:
        kind, *names = self.values
        rules = []
        for name in names:
            neutral = self.values[name][:1]
            allowed = {key: free.get(name, neutral) for key, free in self.free.items()}
            why = f"{name} matters only for some {kind}s"
            rules.append(Constraint((kind, name), _Matters(kind, name, allowed), why))
        return tuple(rules)

    def point(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        free = self.free[kind]
        firsts = {name: free.get(name, v)[0] for name, v in self.values.items()}
        return {**firsts, next(iter(self.values)): kind, **values}


#: The modules that create the built-in spaces, each by a function of its name.
_HOMES = {"cpu": "skforge.tuning.space.cpu", "gpu": "skforge.gpu.space"}


def _make_space(name: str, *how: Any) -> ScheduleSpace:
    home = import_module(_HOMES[name.partition("_")[0]])
    return getattr(home, f"{name}_space")(*how)


class ScheduleSpace:
    """A space of schedules, described by named parameters.

    Spaces are immutable: methods return new ones. Iteration yields the points as dicts
    in the order of the values; the last parameter changes fastest.

    Parameters
    ----------
    parameters : mapping of str to sequence
        Names and values.
    template : callable
        ``template(point, shape)`` returns the schedule of a point for a
        :class:`~skforge.compiler.cost.shape.ForestShape`; it may raise
        ``ScheduleError``.
    constraints : iterable of Constraint
        Rules that points satisfy.
    name : str
        A name for reports.

    Raises
    ------
    InvalidInputError
        If a parameter has no values, or the same value twice.

    Examples
    --------
    >>> space = ScheduleSpace.gpu()
    >>> len(space), space.parameters["rows_per_block"]
    (5184, (8, 32, 64))
    >>> small = space.with_values(representation=["sparse"]).where(
    ...     lambda cache_rows, cache_trees: cache_rows and not cache_trees
    ... )
    >>> len(small)
    432
    >>> small.sample(1, random_state=0)[0]["cache_rows"]
    True
    """

    def __init__(
        self,
        parameters: Mapping[str, Iterable[Any]],
        template: Template,
        constraints: Iterable[Constraint] = (),
        name: str = "custom",
    ) -> None:
        self._parameters = {key: tuple(v) for key, v in parameters.items()}
        self._template = template
        #: The rules that points satisfy.
        self.constraints = tuple(constraints)
        self.name = name
        for key, values in self._parameters.items():
            if not values:
                raise InvalidInputError(
                    f"the parameter {key!r} of the space has no values; give at least "
                    "one, or leave it out."
                )
            if any(value in values[:i] for i, value in enumerate(values)):
                raise InvalidInputError(
                    f"the parameter {key!r} of the space has the same value twice; "
                    "leave one out."
                )
        for constraint in self.constraints:
            for key in constraint.names:
                self._check_name(key)
        self._sizes = {
            name: all(type(value) is int for value in values)
            for name, values in self._parameters.items()
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScheduleSpace):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash((self.name, tuple(self._parameters)))

    def _parts(self) -> tuple[Any, ...]:
        return self._parameters, self._template, self.constraints, self.name

    # ---------------------------------------------------------------- makers

    @classmethod
    def gpu(cls) -> ScheduleSpace:
        """Return the GPU space of SilvanForge, Table 5: 5184 schedules."""
        return _make_space("gpu")

    @classmethod
    def gpu_full(cls) -> ScheduleSpace:
        """Return the whole GPU space of skforge, including Table 5."""
        return _make_space("gpu_full")

    @classmethod
    def cpu_paper(cls) -> ScheduleSpace:
        """Return the CPU space of SilvanForge, §8.3.

        Threads share rows, trees or both; several traversals are interleaved.
        """
        return _make_space("cpu_paper")

    @classmethod
    def cpu(cls, *, threads: bool = True) -> ScheduleSpace:
        """Return the whole CPU space of skforge.

        Parameters
        ----------
        threads : bool, default=True
            Whether threads may share loops over trees; useless with one thread.
        """
        return _make_space("cpu", threads)

    @classmethod
    def of(cls, schedules: Iterable[Schedule | str]) -> ScheduleSpace:
        """Return a space with one parameter, of schedules and names of presets."""
        listed = tuple(schedules)
        for schedule in listed:
            if not isinstance(schedule, (Schedule, str)):
                raise InvalidInputError(
                    "a space consists of Schedules or names of presets. Got "
                    f"{type(schedule).__name__} instead."
                )
        return cls({"schedule": dict.fromkeys(listed)}, _listed_schedule, name="given")

    # --------------------------------------------------------------- changes

    def with_parameter(
        self, name: str, values: Sequence[Any], apply: Apply
    ) -> ScheduleSpace:
        """Return the space with one more parameter.

        Parameters
        ----------
        name : str
            A new name.
        values : sequence
            Its values.
        apply : callable
            ``apply(schedule, value)`` returns the changed schedule.

        Returns
        -------
        ScheduleSpace
        """
        if name in self._parameters:
            raise InvalidInputError(
                f"the space already has a parameter {name!r}; use with_values to "
                "change it."
            )
        parameters, before, *others = self._parts()

        def template(point: Point, shape: ForestShape) -> Schedule:
            return apply(before(point, shape), point[name])

        return ScheduleSpace({**parameters, name: values}, template, *others)

    def with_values(self, **values: Iterable[Any]) -> ScheduleSpace:
        """Return the space with other values of some parameters."""
        for key in values:
            self._check_name(key)
        parameters, *others = self._parts()
        return ScheduleSpace({**parameters, **values}, *others)

    def where(self, test: Callable[..., bool], why: str = "") -> ScheduleSpace:
        """Return the points for which ``test`` is true.

        Parameters
        ----------
        test : callable
            Its arguments are named like parameters of the space.
        why : str
            The rule as a sentence.

        Returns
        -------
        ScheduleSpace
        """
        constraints = (*self.constraints, rule(test, why))
        return ScheduleSpace(self._parameters, self._template, constraints, self.name)

    # ------------------------------------------------------------ inspection

    @property
    def parameters(self) -> dict[str, tuple[Any, ...]]:
        """Names and values."""
        return dict(self._parameters)

    @property
    def n_combinations(self) -> int:
        """The number of combinations of values, ignoring constraints."""
        return prod(len(values) for values in self._parameters.values())

    def __len__(self) -> int:
        return sum(1 for _ in self) if self.size is None else self.size

    @property
    def size(self) -> int | None:
        """The number of points; None if there are more than 300,000.

        ``len`` counts larger spaces, too, but slowly.
        """
        return None if self._listed is None else len(self._listed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        listed = vars(self).get("_listed")  # if that was asked for
        return self._walk() if listed is None else map(dict, listed)

    def __contains__(self, point: object) -> bool:
        return (
            isinstance(point, Mapping)
            and point.keys() == self._parameters.keys()
            and all(point[k] in values for k, values in self._parameters.items())
            and all(_holds(c, point) for c in self.constraints)
        )

    def structure(self, point: Point) -> tuple[Any, ...]:
        """Return the structural hash of a point: all that is no size.

        Points with equal hashes have schedules with the same directives on the same
        loops, which differ in numbers only. Of a parameter whose values are numbers, 0,
        1 and more are told apart, because 0 and 1 may leave a directive out. (*Learning
        to Schedule Halide Pipelines for the GPU*, Fig. 3.)
        """
        return tuple(
            min(point[name], 2) if is_size else point[name]
            for name, is_size in self._sizes.items()
        )

    @property
    def sizes(self) -> tuple[str, ...]:
        """The parameters that are sizes: all of their values are numbers."""
        return tuple(name for name, is_size in self._sizes.items() if is_size)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{k}: {len(v)}" for k, v in self._parameters.items())
        return f"<ScheduleSpace {self.name}: {sizes}>"

    def sample(self, n: int, random_state: Any = None) -> list[dict[str, Any]]:
        """Return distinct points, drawn uniformly at random.

        Parameters
        ----------
        n : int
            Number of points; if the space has fewer, all of them in random order.
        random_state : int, Generator, RandomState or None
            Seed.

        Returns
        -------
        list of dict
        """
        random = generator(random_state)
        if (points := self._listed) is not None:
            return [dict(points[i]) for i in random.permutation(len(points))[:n]]
        drawn: dict[int, dict[str, Any]] = {}
        for _ in range(1000 * n):
            if len(drawn) == n:
                break
            number = int(random.integers(self.n_combinations))
            point = self._point(number)
            if all(_holds(c, point) for c in self.constraints):
                drawn.setdefault(number, point)
        return list(drawn.values())

    # -------------------------------------------------------------- schedules

    def schedule(self, point: Point, forest: Forest | ForestShape) -> Schedule:
        """Return the schedule of a point.

        Parameters
        ----------
        point : mapping of str to object
            A value for each parameter.
        forest : Forest or ForestShape
            The forest that the schedule is for.

        Returns
        -------
        Schedule

        Raises
        ------
        ScheduleError
            If the schedule language refuses the point.
        InvalidInputError
            If the point lacks a parameter or has an unknown one.
        """
        for key in point:
            self._check_name(key)
        missing = [key for key in self._parameters if key not in point]
        if missing:
            raise InvalidInputError(
                f"the point lacks a value for {', '.join(map(repr, missing))}."
            )
        return self._template(point, ForestShape.of(forest))

    def candidate(
        self, point: Point, forest: Forest | ForestShape, origin: str
    ) -> Candidate:
        """Return the candidate for a point; it holds the reason if it is illegal."""
        try:
            return Candidate(self.schedule(point, forest), point, origin)
        except ScheduleError as error:
            return Candidate(None, point, origin, str(error).splitlines()[0])

    @cached_property
    def _listed(self) -> list[dict[str, Any]] | None:
        """All points, or None if there are more than ``LISTED``."""
        points = list(islice(self._walk(), LISTED + 1))
        return None if len(points) > LISTED else points

    def _walk(self) -> Iterator[dict[str, Any]]:
        names = list(self._parameters)
        due: list[list[Constraint]] = [[] for _ in names]
        for constraint in self.constraints:
            last = max(map(names.index, constraint.names), default=0)
            due[last].append(constraint)
        chosen: dict[str, Any] = {}

        def walk(place: int) -> Iterator[dict[str, Any]]:
            if place == len(names):
                yield dict(chosen)
                return
            for value in self._parameters[names[place]]:
                chosen[names[place]] = value
                if all(_holds(c, chosen) for c in due[place]):
                    yield from walk(place + 1)

        return walk(0)

    def _point(self, number: int) -> dict[str, Any]:
        sizes = [len(values) for values in self._parameters.values()]
        places = np.unravel_index(number, sizes)
        named = zip(self._parameters.items(), places, strict=True)
        return {name: values[place] for (name, values), place in named}

    def _check_name(self, name: str) -> None:
        if name not in self._parameters:
            known = ", ".join(self._parameters)
            raise InvalidInputError(
                f"the space has no parameter {name!r}; its parameters are {known}."
            )


def generator(random_state: Any) -> np.random.Generator:
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(1 << 31))
    return np.random.default_rng(random_state)


def with_hops(
    schedule: Schedule, loop: str, hops: str, tiled: bool, shape: ForestShape
) -> Schedule:
    if hops == "unroll" and tiled:
        return schedule.pad_trees()
    padded = min(MAX_WALK_DEPTH, shape.max_depth) if hops == "unroll" else 0
    peeled = min(MAX_WALK_DEPTH, shape.min_depth) if hops == "peel" else 0
    return unchecked(schedule, loop, padded, peeled)


def _holds(constraint: Constraint, point: Point) -> bool:
    return bool(constraint.test(**{name: point[name] for name in constraint.names}))


def _listed_schedule(point: Point, _shape: ForestShape) -> Schedule:
    schedule = point["schedule"]
    return schedule if isinstance(schedule, Schedule) else Schedule.preset(schedule)
