"""The schedule: an immutable value that says how a forest is walked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from inspect import signature
from numbers import Integral
from typing import TYPE_CHECKING, Any, NoReturn

from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule import directives as d
from skforge.compiler.schedule.apply import apply, apply_all
from skforge.compiler.schedule.bind import bind, kind_of
from skforge.compiler.schedule.bound import BoundNest
from skforge.compiler.schedule.explain import explain
from skforge.compiler.schedule.nest import Nest, root_nest
from skforge.exceptions import InvalidInputError, ScheduleError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Directives, applied left to right to the loops over batch and tree.

    Every method that adds a directive returns a new schedule, and raises
    ``ScheduleError`` at once if the directive is not legal there. Checks that need the
    number of trees or a target are made by ``loop_nest`` and by compiling.

    Parameters
    ----------
    directives : tuple of Directive, default=()
        The directives; usually left out, and added by the methods.

    Examples
    --------
    >>> s = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    >>> s
    Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    >>> eval(repr(s)) == s
    True
    """

    directives: tuple[d.Directive, ...] = ()

    def __post_init__(self) -> None:
        """Raise if a directive is not legal where it is."""
        object.__setattr__(self, "directives", tuple(self.directives))
        # The cache cannot tell 64.0 or True from an int: check arguments first.
        if all(d.problem(directive) is None for directive in self.directives):
            _nest_of(self.directives)
        else:
            apply_all(self.directives)

    def _with(self, directive: d.Directive) -> Schedule:
        if d.problem(directive) is not None:
            return Schedule((*self.directives, directive))  # which raises
        # The earlier directives were checked when they were added.
        made = object.__new__(Schedule)
        object.__setattr__(made, "directives", (*self.directives, directive))
        _nest_of(made.directives)
        return made

    def __repr__(self) -> str:
        """Return the calls that make this schedule."""
        return "Schedule()" + "".join(f".{one}" for one in self.directives)

    if not TYPE_CHECKING:  # mypy names a wrong method itself

        def __getattr__(self, name: str) -> NoReturn:
            """Suggest a method for a name as it is written in the papers."""
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            near = (
                [] if name.startswith("_") else get_close_matches(words, d.BY_NAME, 1)
            )
            hint = f"; did you mean {near[0]}?" if near else ""
            # Without an object Python does not add its own guess.
            raise AttributeError(f"A Schedule has no {name!r}{hint}", name=name)

    # --- loops -----------------------------------------------------------------------

    def tile(self, index: str, outer: str, inner: str, size: int) -> Schedule:
        """Replace a loop by one over blocks and one over the inside of a block.

        ``for v in 0 to n`` becomes ``for outer in 0 to n step size`` around
        ``for inner in 0 to size``, and the index is ``outer + inner``. A partial last
        block is guarded.

        Parameters
        ----------
        index : str
            Loop to tile; it must not have marks yet.
        outer, inner : str
            Names of the new loops, not used before in this schedule.
        size : int
            Iterations of ``index`` in a block; if negative, the number of blocks.

        Notes
        -----
        Good for: working sets that fit a cache, and work for threads.
        Costs: one more loop, and a guard where the size does not divide.
        """
        return self._with(d.Tile(index, outer, inner, _whole(size)))

    def split(self, index: str, first: str, second: str, at: int) -> Schedule:
        """Replace a loop by two, one after the other, each with a copy of its body.

        ``for v in 0 to n: body`` becomes ``for first in 0 to at: body`` and then
        ``for second in at to n: body``. Loops in the body keep their names, and a later
        directive on such a name applies to both copies.

        Parameters
        ----------
        index : str
            Loop to split; it must not have marks yet.
        first, second : str
            Names of the new loops, not used before in this schedule.
        at : int
            Where ``second`` starts, counted from the start of ``index`` in rows or
            trees; a multiple of its step. The loop must be longer than this, which is
            checked once its length is known. A batch may be shorter; ``second`` then
            has no rows.

        Notes
        -----
        Good for: trees of different depth, each with its own ``unroll_walk``.
        Costs: a copy of the code.
        """
        return self._with(d.Split(index, first, second, _whole(at)))

    def reorder(self, *indices: str) -> Schedule:
        """Permute loops that are directly inside each other.

        Parameters
        ----------
        *indices : str
            The loops, outermost first in the new order. They must be perfectly nested:
            nothing between them, and no second loop beside an inner one.

        Notes
        -----
        Good for: reuse, of a tree over many rows or of a row over many trees.
        Costs: nothing by itself; if a row visits trees out of model order, exact sums
        need one stored leaf value per tree.
        """
        return self._with(d.Reorder(indices))

    def gpu_dimension(self, index: str, dimension: str) -> Schedule:
        """Run each iteration of a loop on its own GPU block or thread.

        Parameters
        ----------
        index : str
            The loop. Loops on the grid must be outside those on the block.
        dimension : {"grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z"}
            The dimension; each can be used once on the path to a walk.
        """
        return self._with(d.GpuDimension(index, dimension))

    def unroll(self, index: str) -> Schedule:
        """Unroll a loop completely: repeat its body for each iteration.

        Parameters
        ----------
        index : str
            The loop; its length must be known when the schedule is bound.
        """
        return self._with(d.Unroll(index))

    def specialize(self, index: str) -> Schedule:
        """Generate separate code for the iterations of a tree loop.

        Each copy is specialised to the depths of its trees; iterations with equal
        depths share one.

        Parameters
        ----------
        index : str
            A loop over trees, often a parallel one.
        """
        return self._with(d.Specialize(index))

    # --- how walks run ---------------------------------------------------------------

    def cache(self, index: str, layout: str | None = None) -> Schedule:
        """Fetch what one iteration of a loop uses before it starts.

        A CPU prefetches it; a GPU loads it into shared memory.

        Parameters
        ----------
        index : str
            A loop over rows caches rows, one over trees caches trees. One iteration
            must use consecutive ones.
        layout : {"row", "padded", "feature"}, optional
            Layout of cached rows in shared memory: row after row ("row"), the same with
            an odd stride in words ("padded"), or feature after feature ("feature"). The
            default is "feature" if adjacent threads take rows, in a multiple of 32,
            else "padded".
        """
        return self._with(d.Cache(index, layout))

    def parallel(self, index: str) -> Schedule:
        """Run the iterations of a loop on several CPU threads.

        Parameters
        ----------
        index : str
            The loop. Partial results of a loop over trees are combined afterwards.
        """
        return self._with(d.Parallel(index))

    def interleave(self, index: str, factor: int | None = None) -> Schedule:
        """Keep several walks of an innermost loop in flight at the same time.

        Parameters
        ----------
        index : str
            An innermost loop.
        factor : int, optional
            Number of walks in flight, 1 to 64. The default is the whole loop, whose
            length must then be known when the schedule is bound.

        Notes
        -----
        Good for: hiding the latency of loads, the largest gain on a CPU.
        Costs: registers; beyond 16 to 32 walks they spill.
        """
        whole = None if factor is None else _whole(factor)
        return self._with(d.Interleave(index, whole))

    def unroll_walk(self, index: str, depth: int) -> Schedule:
        """Walk ``depth`` hops without leaf checks.

        Trees are padded as needed; in deeper trees a loop with checks does the rest.

        Parameters
        ----------
        index : str
            Loop around the walks. A walk can have one such directive.
        depth : int
            Hops without a check, 1 to 64.
        """
        return self._with(d.UnrollWalk(index, _whole(depth)))

    def peel_walk(self, index: str, depth: int) -> Schedule:
        """Walk the first ``depth`` hops without leaf checks and without padding.

        The number of unchecked hops never exceeds the depth of the shallowest leaf.

        Parameters
        ----------
        index : str
            Loop around the walks. A walk can have one such directive.
        depth : int
            Most hops without a check, 1 to 64.
        """
        return self._with(d.PeelWalk(index, _whole(depth)))

    def vectorize(self, index: str) -> Schedule:
        """Walk the rows of an innermost batch loop in SIMD lanes.

        Parameters
        ----------
        index : str
            An innermost loop; it cannot also be interleaved. A loop over trees
            evaluates all trees at once for one quantised row.
        """
        return self._with(d.Vectorize(index))

    def cache_predicates(self, index: str) -> Schedule:
        """Evaluate each distinct predicate once for the rows of one iteration.

        Trees become bit logic over these results, with ``represent("bitsliced")``. A
        thread keeps one bit for each predicate and row of the block.

        Parameters
        ----------
        index : str
            A batch loop around serial loops over all trees and, innermost, a vectorised
            block of 64, 128, 256 ... rows.
        """
        return self._with(d.CachePredicates(index))

    def quantize(self, index: str) -> Schedule:
        """Keep the rows of one iteration as bin codes, and compare integers.

        Parameters
        ----------
        index : str
            A loop over rows.
        """
        return self._with(d.Quantize(index))

    # --- reductions ------------------------------------------------------------------

    def atomic_reduce(self, index: str) -> Schedule:
        """Reduce across the iterations of a tree loop with atomic operations.

        Parameters
        ----------
        index : str
            A loop over trees that is parallel or mapped to a GPU.
        """
        return self._with(d.AtomicReduce(index))

    def shared_reduce(self, index: str) -> Schedule:
        """Keep the partial results of a tree loop in the GPU's shared memory.

        Parameters
        ----------
        index : str
            A loop over trees that is mapped to a GPU.
        """
        return self._with(d.SharedReduce(index))

    def vector_reduce(self, index: str, width: int) -> Schedule:
        """Reduce the partial results of a tree loop with vector instructions.

        Parameters
        ----------
        index : str
            A loop over trees that is parallel or mapped to a GPU.
        width : {2, 4, 8, 16, 32, 64}
            Elements added at a time.
        """
        return self._with(d.VectorReduce(index, _whole(width)))

    # --- the model -------------------------------------------------------------------

    def tile_nodes(self, size: int, kind: str = "uniform") -> Schedule:
        """Group up to ``size`` nodes of a tree into one n-ary node.

        Parameters
        ----------
        size : int
            Nodes in a tile, 1 to 8; 3, 7, 15 or 31 for complete tiles.
        kind : {"uniform", "probability", "complete"}
            Fill tiles breadth-first, or with the nodes that most rows visit, or with
            whole levels, which only some representations support ("tiles").
        """
        return self._with(d.TileNodes(_whole(size), kind))

    def pad_trees(self) -> Schedule:
        """Pad each tree until its leaves are equally deep."""
        return self._with(d.PadTrees())

    def reorder_trees(self) -> Schedule:
        """Sort trees by depth and shape, so that adjacent trees have similar walks."""
        return self._with(d.ReorderTrees())

    def represent(self, representation: str) -> Schedule:
        """Choose the representation of the forest in memory.

        Parameters
        ----------
        representation : str
            "array", "sparse" (the default), "reorg", or another registered
            representation.
        """
        return self._with(d.Represent(representation))

    # --- what a schedule is ----------------------------------------------------------

    @property
    def kind(self) -> d.Kind:
        """The kind of target: "gpu" if a loop is mapped to one, else "cpu"."""
        return kind_of(self.directives)

    @staticmethod
    def preset(name: str, **sizes: int) -> Schedule:
        """Return a known strategy by name.

        Parameters
        ----------
        name : str
            One of ``skforge.compiler.schedule.presets.PRESETS``, such as "xgboost".
        **sizes : int
            Sizes of the strategy that differ from its defaults.

        Returns
        -------
        Schedule
            The strategy.

        Raises
        ------
        ScheduleError
            If there is no such strategy or size.

        Examples
        --------
        >>> Schedule.preset("tahoe-direct", rows=32).kind
        'gpu'
        """
        make = PRESETS.get(name)
        if make is None:
            quoted = ", ".join(f'"{known}"' for known in PRESETS)
            raise ScheduleError(f"{name!r} is not a preset; the presets are {quoted}.")
        defaults = signature(make).parameters
        for size in sizes:
            if size not in defaults:
                takes = ", ".join(f"{p.name}={p.default}" for p in defaults.values())
                raise ScheduleError(
                    f'The preset "{name}" has no size "{size}"; it takes '
                    f"{takes or 'no sizes'}."
                )
        return make(**sizes)

    def loop_nest(self, forest: Forest | int) -> BoundNest:
        """Return the loops that this schedule makes for a forest.

        Parameters
        ----------
        forest : Forest or int
            The forest, or just its number of trees.

        Returns
        -------
        BoundNest
            The loops; ``str`` draws them.

        Examples
        --------
        >>> print(Schedule().tile("batch", "b0", "b1", 64).loop_nest(10))
        # 10 trees, sparse
        for b0 in 0 to n_rows step 64:
          for b1 in 0 to min(64, n_rows - b0):
            for tree in 0 to 10:
              result[b0 + b1] += walk(trees[tree], rows[b0 + b1])
        """
        return bind(self, _count(forest))

    def explain(self, forest: Forest | int) -> str:
        """Return the loop nest, and a line for each directive that says what it does.

        Parameters
        ----------
        forest : Forest or int
            The forest, or just its number of trees.

        Returns
        -------
        str
            The text.
        """
        nest = self.loop_nest(forest)
        lines = explain(self.directives, nest)
        return "\n".join([str(nest), "", *lines]) if lines else str(nest)

    def to_json(self) -> str:
        """Return the schedule as JSON text; ``from_json`` reads it back.

        Returns
        -------
        str
            One line of JSON.

        Examples
        --------
        >>> Schedule().parallel("batch").to_json()
        '{"version": 1, "directives": [{"op": "parallel", "index": "batch"}]}'
        """
        steps = [d.to_step(directive) for directive in self.directives]
        return json.dumps({"version": JSON_VERSION, "directives": steps})

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Return the schedule that ``to_json`` wrote.

        Parameters
        ----------
        text : str
            The JSON text.

        Returns
        -------
        Schedule
            The schedule.

        Raises
        ------
        ScheduleError
            If the text is not a schedule, or one of a later version.
        """
        try:
            content = json.loads(text)
        except RecursionError as error:
            raise ScheduleError(
                "This JSON is nested too deeply for a schedule."
            ) from error
        except ValueError as error:
            raise ScheduleError(f"A schedule must be JSON text: {error}.") from error
        version = content.get("version") if isinstance(content, dict) else None
        if version != JSON_VERSION or version is True:
            raise ScheduleError(
                f'A schedule in JSON is an object with "version": {JSON_VERSION}, but '
                f"here it is {json.dumps(version)}; to read a later version, update "
                "skforge."
            )
        steps = content.get("directives")
        if not isinstance(steps, list):
            raise ScheduleError('A schedule in JSON must have a list "directives".')
        return cls(tuple(map(d.from_step, steps)))


JSON_VERSION = 1

#: Presets by name; filled by ``presets``, which imports Schedule.
PRESETS: dict[str, Callable[..., Schedule]] = {}


def _count(forest: Forest | int) -> int:
    count: Any = getattr(forest, "n_trees", forest)
    whole = isinstance(count, Integral) and not isinstance(count, bool)
    if whole and count >= 0:
        return int(count)
    raise InvalidInputError(
        f"forest must be a Forest or a number of trees, 0 or more. Got {forest!r} "
        "instead."
    )


def _whole(value: Any) -> int:
    """Convert a NumPy integer to an int; other values are left for the check."""
    plain = type(value) in (int, bool)
    return int(value) if isinstance(value, Integral) and not plain else value


# Directives are applied one by one while a schedule is written, so each prefix has been
# checked just before.
@lru_cache(maxsize=4096)
def _nest_of(directives: tuple[d.Directive, ...]) -> Nest:
    if not directives:
        return root_nest()
    if len(directives) > 50:  # too deep for recursion
        return apply_all(directives)
    return apply(_nest_of(directives[:-1]), directives[-1])
