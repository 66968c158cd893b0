"""Spaces of schedules: named parameters, constraints, and a template that writes them.

The template turns a point, one value for each parameter, into a schedule; what is
known of the forest (its depths, for walks without leaf checks) is given to it. The
language itself judges what is legal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, TypeAlias

import numpy as np

from skforge.compiler.defaults.cpu import ForestShape
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.directives import MAX_WALK_DEPTH
from skforge.compiler.schedule.families import unchecked
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import InvalidInputError, ScheduleError
from skforge.tuning.search.trial import Candidate

Point: TypeAlias = Mapping[str, Any]
Template: TypeAlias = Callable[[Point, ForestShape], Schedule]
Apply: TypeAlias = Callable[[Schedule, Any], Schedule]

#: Points that are listed to count or to draw from them; of larger spaces points are
#: drawn until enough satisfy the constraints.
LISTED = 300_000


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule that points obey.

    Parameters
    ----------
    names : tuple of str
        The parameters that it looks at.
    test : callable
        Takes these by name; a point for which it is false is left out.
    why : str
        The rule as a sentence.
    """

    names: tuple[str, ...]
    test: Callable[..., bool]
    why: str = ""


def rule(test: Callable[..., bool], why: str = "") -> Constraint:
    """Return the constraint on the parameters that are the arguments of a test."""
    return Constraint(tuple(inspect.signature(test).parameters), test, why)


#: What makes the known spaces, by name; the modules of this folder fill it.
MAKERS: dict[str, Callable[..., ScheduleSpace]] = {}


class ScheduleSpace:
    """Schedules as points of named parameters.

    A space is a value: methods return another. Iterating yields the points, as dicts,
    in the order of the values, the last parameter changing fastest.

    Parameters
    ----------
    parameters : mapping of str to sequence
        Names and values.
    template : callable
        ``template(point, shape)`` returns the schedule of a point for a forest of a
        :class:`~skforge.compiler.defaults.cpu.ForestShape`; it may raise
        ``ScheduleError``.
    constraints : iterable of Constraint
        What points must obey.
    name : str
        For reports.

    Raises
    ------
    InvalidInputError
        If a parameter has no values, or one of them twice.

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
        self._constraints = tuple(constraints)
        self.name = name
        for key, values in self._parameters.items():
            if not values:
                raise InvalidInputError(
                    f"the parameter {key!r} of the space has no values; give at least "
                    "one, or leave it out."
                )
            if any(value in values[:i] for i, value in enumerate(values)):
                raise InvalidInputError(
                    f"the parameter {key!r} of the space has a value twice."
                )
        for constraint in self._constraints:
            for key in constraint.names:
                self._check_name(key)
        self._points: list[dict[str, Any]] | None = None
        self._many = False

    def __eq__(self, other: object) -> bool:
        """Tell whether two spaces have the same points and write the same schedules."""
        if not isinstance(other, ScheduleSpace):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        """Return a hash of the name and the parameters' names."""
        return hash((self.name, tuple(self._parameters)))

    def _parts(self) -> tuple[Any, ...]:
        return self.name, self._parameters, self._template, self._constraints

    # ---------------------------------------------------------------- makers

    @classmethod
    def gpu(cls) -> ScheduleSpace:
        """Return the space of Table 5 of SilvanForge: 5184 schedules for GPUs."""
        return MAKERS["gpu"]()

    @classmethod
    def gpu_full(cls) -> ScheduleSpace:
        """Return all that skforge knows to do on a GPU, Table 5 included."""
        return MAKERS["gpu_full"]()

    @classmethod
    def cpu_paper(cls) -> ScheduleSpace:
        """Return the CPU space of SilvanForge, §8.3.

        Threads share rows, trees or both, and so many walks are in flight.
        """
        return MAKERS["cpu_paper"]()

    @classmethod
    def cpu(cls, *, threads: bool = True) -> ScheduleSpace:
        """Return all that skforge knows to do on a CPU.

        Parameters
        ----------
        threads : bool, default=True
            Whether loops over trees may be shared among threads, which is of no use on
            one.
        """
        return MAKERS["cpu"](threads)

    @classmethod
    def of(cls, schedules: Iterable[Schedule | str]) -> ScheduleSpace:
        """Return a space of given schedules, or presets by name; one parameter."""
        listed = tuple(schedules)
        for one in listed:
            if not isinstance(one, (Schedule, str)):
                raise InvalidInputError(
                    "a space is made of Schedules or names of presets; got "
                    f"{type(one).__name__}."
                )
        return cls({"schedule": dict.fromkeys(listed)}, _given, name="given")

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
            ``apply(schedule, value)`` returns what the schedule becomes.

        Returns
        -------
        ScheduleSpace
        """
        if name in self._parameters:
            raise InvalidInputError(
                f"the space has a parameter {name!r} already; with_values changes it."
            )
        before = self._template

        def template(point: Point, shape: ForestShape) -> Schedule:
            return apply(before(point, shape), point[name])

        return ScheduleSpace(
            {**self._parameters, name: values}, template, self._constraints, self.name
        )

    def with_values(self, **values: Iterable[Any]) -> ScheduleSpace:
        """Return the space with other values of some parameters."""
        for key in values:
            self._check_name(key)
        changed = {**self._parameters, **values}
        return ScheduleSpace(changed, self._template, self._constraints, self.name)

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
        constraints = (*self._constraints, rule(test, why))
        return ScheduleSpace(self._parameters, self._template, constraints, self.name)

    # ------------------------------------------------------------ inspection

    @property
    def parameters(self) -> dict[str, tuple[Any, ...]]:
        """Names and values."""
        return dict(self._parameters)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """What points must obey."""
        return self._constraints

    @property
    def n_combinations(self) -> int:
        """Combinations of values, those that constraints leave out included."""
        return prod(len(values) for values in self._parameters.values())

    def __len__(self) -> int:
        """Return the number of points."""
        points = self._listed_if_few()
        return sum(1 for _ in self) if points is None else len(points)

    @property
    def size(self) -> int | None:
        """The number of points; None if there are more than 300,000.

        These are counted by ``len``, which takes its time.
        """
        points = self._listed_if_few()
        return None if points is None else len(points)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the points."""
        if self._points is not None:
            return (dict(point) for point in self._points)
        return self._walk()

    def __contains__(self, point: object) -> bool:
        """Whether a mapping is a point of the space."""
        return (
            isinstance(point, Mapping)
            and point.keys() == self._parameters.keys()
            and all(point[k] in values for k, values in self._parameters.items())
            and all(_holds(c, point) for c in self._constraints)
        )

    def __repr__(self) -> str:
        """Return the name, the parameters and how many values each has."""
        sizes = ", ".join(f"{k}: {len(v)}" for k, v in self._parameters.items())
        return f"<ScheduleSpace {self.name}: {sizes}>"

    def sample(self, n: int, random_state: Any = None) -> list[dict[str, Any]]:
        """Return different points, drawn with equal chances.

        Parameters
        ----------
        n : int
            How many; all of them, in random order, if there are fewer.
        random_state : int, Generator, RandomState or None
            Seed.

        Returns
        -------
        list of dict
        """
        random = generator(random_state)
        points = self._listed_if_few()
        if points is not None:
            order = random.permutation(len(points))[:n]
            return [dict(points[i]) for i in order]
        found: dict[int, dict[str, Any]] = {}
        for _ in range(1000 * n):
            if len(found) == n:
                break
            number = int(random.integers(self.n_combinations))
            point = self._point(number)
            if all(_holds(c, point) for c in self._constraints):
                found.setdefault(number, point)
        return list(found.values())

    # -------------------------------------------------------------- schedules

    def schedule(self, point: Point, forest: Forest | ForestShape) -> Schedule:
        """Return the schedule of a point.

        Parameters
        ----------
        point : mapping of str to object
            A value for each parameter.
        forest : Forest or ForestShape
            What it is for.

        Returns
        -------
        Schedule

        Raises
        ------
        ScheduleError
            If the language does not allow it.
        InvalidInputError
            If it is no point of this space.
        """
        for key in point:
            self._check_name(key)
        missing = [key for key in self._parameters if key not in point]
        if missing:
            raise InvalidInputError(
                f"the point lacks a value for {', '.join(map(repr, missing))}."
            )
        return self._template(point, _shape(forest))

    def candidate(
        self, point: Point, forest: Forest | ForestShape, origin: str
    ) -> Candidate:
        """Return a point to try; one that is not legal says why."""
        try:
            return Candidate(self.schedule(point, forest), point, origin)
        except ScheduleError as error:
            return Candidate(None, point, origin, str(error).splitlines()[0])

    def _listed_if_few(self) -> list[dict[str, Any]] | None:
        """Return all points, or None if they are more than ``LISTED``."""
        if self._points is None and not self._many:
            points = list(islice(self._walk(), LISTED + 1))
            self._many = len(points) > LISTED
            if not self._many:
                self._points = points
        return self._points

    def _walk(self) -> Iterator[dict[str, Any]]:
        """Yield points, each constraint tested as soon as its parameters are set."""
        names, due = list(self._parameters), []
        for place, name in enumerate(names):
            before = set(names[: place + 1])
            whole = [c for c in self._constraints if before >= {*c.names}]
            due.append([c for c in whole if name in c.names])
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
        point = {}
        for name, values in reversed(self._parameters.items()):
            number, place = divmod(number, len(values))
            point[name] = values[place]
        return {name: point[name] for name in self._parameters}

    def _check_name(self, name: str) -> None:
        if name not in self._parameters:
            known = ", ".join(self._parameters)
            raise InvalidInputError(
                f"the space has no parameter {name!r}; its parameters are {known}."
            )


def generator(random_state: Any) -> np.random.Generator:
    """Return a generator for any seed that scikit-learn takes."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(1 << 31))
    return np.random.default_rng(random_state)


def with_hops(
    schedule: Schedule, loop: str, hops: str, tiled: bool, shape: ForestShape
) -> Schedule:
    """Leave out leaf checks as the parameter ``hops`` of a point says."""
    if hops == "unroll" and tiled:
        return schedule.pad_trees()
    padded = min(MAX_WALK_DEPTH, shape.max_depth) if hops == "unroll" else 0
    peeled = min(MAX_WALK_DEPTH, shape.min_depth) if hops == "peel" else 0
    return unchecked(schedule, loop, padded, peeled)


def _holds(constraint: Constraint, point: Point) -> bool:
    return bool(constraint.test(**{name: point[name] for name in constraint.names}))


def _shape(forest: Forest | ForestShape) -> ForestShape:
    return forest if isinstance(forest, ForestShape) else ForestShape.of(forest)


def _given(point: Point, _shape: ForestShape) -> Schedule:
    one = point["schedule"]
    return one if isinstance(one, Schedule) else Schedule.preset(one)
