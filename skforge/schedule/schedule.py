"""The schedule: an immutable value that says how a forest is traversed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from numbers import Integral
from typing import TYPE_CHECKING, Any

from skforge.exceptions import InvalidInputError, ScheduleError
from skforge.forest.forest import Forest
from skforge.schedule import apply, bind, serialize
from skforge.schedule import directives as d

if TYPE_CHECKING:
    from skforge.schedule.bound import BoundNest


@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    """How to run a forest: directives that change the loops over rows and trees.

    A schedule starts from a loop ``batch`` over rows around a loop ``tree`` over trees.
    Its directives are applied from left to right. They change the speed of predictions,
    never their values. Each method that adds a directive returns a new schedule, and
    raises ``ScheduleError`` if the directive is not legal there. ``loop_nest`` and the
    compiler make the checks that need the number of trees or the target.

    Parameters
    ----------
    directives : tuple of Directive, default=()
        The directives. Usually you leave them out and call the methods.

    Examples
    --------
    >>> s = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    >>> s
    Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    >>> eval(repr(s)) == s
    True
    """

    directives: tuple[d.Directive, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether no other package has defined one of the directives."""
        makers = map(type, self.directives)
        return all(maker.__module__.startswith("skforge.") for maker in makers)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directives", tuple(self.directives))
        # The cache cannot tell 64.0 or True from an int: check arguments first.
        if all(d.problem(directive) is None for directive in self.directives):
            apply.nest_of(self.directives)
        else:
            apply.apply_all(self.directives)

    def _with(self, directive: d.Directive) -> Schedule:
        if d.problem(directive) is not None:
            return Schedule((*self.directives, directive))  # which raises
        # The earlier directives were checked when they were added.
        longer = object.__new__(Schedule)
        object.__setattr__(longer, "directives", (*self.directives, directive))
        apply.nest_of(longer.directives)
        return longer

    def __repr__(self) -> str:
        return "Schedule()" + "".join(f".{d.call(step)}" for step in self.directives)

    if not TYPE_CHECKING:  # mypy names a wrong method itself

        def __getattr__(self, name: str) -> Any:
            """Suggest a method for a name of the papers."""
            from difflib import get_close_matches

            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            near = (
                [] if name.startswith("_") else get_close_matches(words, d.BY_NAME, 1)
            )
            hint = f"; did you mean {near[0]}?" if near else ""
            # Without an object Python does not add its own guess.
            raise AttributeError(f"A Schedule has no {name!r}{hint}", name=name)

    # --- loops -----------------------------------------------------------------------

    def tile(self, index: str, outer: str, inner: str, size: int) -> Schedule:
        """Replace a loop by a loop over blocks and a loop inside a block (loop tiling).

        ``for v in 0 to n`` becomes ``for outer in 0 to n step size`` around
        ``for inner in 0 to size``; the index is ``outer + inner``. A partial last block
        is guarded.

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
        Good for: rows that stay in the cache, and blocks that threads can share.
        Costs: one more loop, and a guard if the size does not divide.
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
            checked once its length is known. A batch may turn out shorter; ``second``
            then has no rows.

        Notes
        -----
        Good for: trees of different depths, so that each range has its own
        ``unroll_walk``.
        Costs: a copy of the code.
        """
        return self._with(d.Split(index, first, second, _whole(at)))

    def reorder(self, *indices: str) -> Schedule:
        """Permute nested loops (loop interchange).

        Parameters
        ----------
        *indices : str
            The loops in the new order, outermost first. They must be perfectly nested:
            nothing between them, and no second loop beside an inner one.

        Notes
        -----
        Good for: reuse of a tree by many rows, or of a row by many trees.
        Costs: nothing by itself. If a row meets its trees out of model order, exact
        sums store one leaf value per tree.
        """
        return self._with(d.Reorder(indices))

    def gpu_dimension(self, index: str, dimension: str) -> Schedule:
        """Run each iteration of a loop on its own GPU block or thread.

        Parameters
        ----------
        index : str
            The loop. Loops on the grid must be outside loops on the block.
        dimension : {"grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z"}
            "grid" for a block per iteration, "block" for a thread per iteration. Each
            dimension can be used once around a walk.

        Notes
        -----
        Good for: one thread per row in large batches; several threads per row in small
        ones.
        Costs: over trees, a reduction.
        """
        return self._with(d.GpuDimension(index, dimension))

    def unroll(self, index: str) -> Schedule:
        """Unroll a short loop completely: repeat its body for each iteration.

        Parameters
        ----------
        index : str
            The loop. Its length must be known when the schedule is bound.
        """
        return self._with(d.Unroll(index))

    def specialize(self, index: str) -> Schedule:
        """Compile separate code for the iterations of a tree loop.

        Each copy of the code is specialised to the depths of its trees. Iterations with
        equal depths share a copy.

        Parameters
        ----------
        index : str
            A loop over trees, often a parallel one.

        Notes
        -----
        Good for: forests whose trees differ in depth.
        Costs: one copy of the code for each different depth.
        """
        return self._with(d.Specialize(index))

    # --- how walks run ---------------------------------------------------------------

    def cache(self, index: str, layout: str | None = None) -> Schedule:
        """Fetch the rows or trees of one iteration before it starts.

        A CPU prefetches them. The threads of a GPU block copy them to shared memory
        together.

        Parameters
        ----------
        index : str
            A loop over rows caches rows, a loop over trees caches trees. One iteration
            must use consecutive ones.
        layout : {"row", "padded", "feature"}, optional
            Layout of the rows in shared memory: row after row ("row"), the same with an
            odd number of words from row to row ("padded"), or feature after feature
            ("feature"). The default is "feature" if adjacent threads take rows, in a
            multiple of 32, else "padded".

        Notes
        -----
        Good for: wide rows in large batches on a CPU; rows on a GPU if they fit; trees
        on a GPU under large blocks of rows.
        Costs: instructions and cache space on a CPU; shared memory and a barrier per
        iteration on a GPU.
        """
        return self._with(d.Cache(index, layout))

    def parallel(self, index: str) -> Schedule:
        """Share the iterations of a loop among CPU threads.

        Parameters
        ----------
        index : str
            The loop. Partial results of a loop over trees are combined afterwards.

        Notes
        -----
        Good for: blocks of rows; tiles of trees if there are few rows.
        Costs: over trees, memory for the partial results.
        """
        return self._with(d.Parallel(index))

    def interleave(self, index: str, factor: int | None = None) -> Schedule:
        """Keep several walks of an innermost loop in flight together.

        Parameters
        ----------
        index : str
            An innermost loop.
        factor : int, optional
            Number of walks in flight, 1 to 64. The default is all walks of the loop,
            whose length must then be known when the schedule is bound.

        Notes
        -----
        Good for: hiding the latency of loads; the largest single gain on a CPU.
        Costs: registers; beyond 16 to 32 walks they spill.
        """
        whole = None if factor is None else _whole(factor)
        return self._with(d.Interleave(index, whole))

    def unroll_walk(self, index: str, depth: int) -> Schedule:
        """Let each walk make ``depth`` hops from node to child without leaf checks.

        Trees are padded as needed. In deeper trees, a loop with checks makes the other
        hops.

        Parameters
        ----------
        index : str
            Loop around the walks, which may have only one ``unroll_walk`` or
            ``peel_walk``.
        depth : int
            Hops without a check, 1 to 64.

        Notes
        -----
        Good for: trees whose leaves are nearly equally deep.
        Costs: memory for the padding.
        """
        return self._with(d.UnrollWalk(index, _whole(depth)))

    def peel_walk(self, index: str, depth: int) -> Schedule:
        """Leave out leaf checks on at most the first ``depth`` hops, without padding.

        The number of unchecked hops never exceeds the depth of the shallowest leaf, so
        this suits deep or unbalanced trees.

        Parameters
        ----------
        index : str
            Loop around the walks, which may have only one ``unroll_walk`` or
            ``peel_walk``.
        depth : int
            Most hops without a check, 1 to 64.
        """
        return self._with(d.PeelWalk(index, _whole(depth)))

    def vectorize(self, index: str) -> Schedule:
        """Run an innermost loop in SIMD lanes.

        On a loop over rows, each lane walks one row. On a loop over trees, one row
        passes all trees at once, with ``represent("lanes")`` or
        ``represent("tiles")``.

        Parameters
        ----------
        index : str
            An innermost loop. It cannot also be interleaved.

        Notes
        -----
        Good for: over rows, wide vectors with fast gathers; over trees, few rows.
        Costs: over rows, lanes wait for their deepest walk; over trees, the search of
        ``quantize`` for each used feature.
        """
        return self._with(d.Vectorize(index))

    def cache_predicates(self, index: str) -> Schedule:
        """Evaluate each distinct predicate once for the rows of one iteration.

        With ``represent("bitsliced")``, trees become bit logic on the outcomes. Each
        thread of a CPU keeps one bit for each predicate and row of the block.

        Parameters
        ----------
        index : str
            A loop over rows. It contains serial loops over all trees and, innermost, a
            vectorised block of 64, 128, 256 ... rows. Or the outermost loop over trees
            in a block: each iteration evaluates the predicates of its own trees.

        Notes
        -----
        Good for: forests whose nodes share predicates, and batches of at least a block;
        over tiles of trees, forests whose table of bits outgrows the L2 cache.
        Costs: predicates that no row of the block needs, and the table of bits; over
        tiles, predicates that trees of several tiles test are evaluated in each.
        """
        return self._with(d.CachePredicates(index))

    def quantize(self, index: str) -> Schedule:
        """Turn the rows of one iteration into bin codes; walks then compare integers.

        Parameters
        ----------
        index : str
            A loop over rows.

        Notes
        -----
        Good for: forests whose nodes do not fit a cache.
        Costs: a search for each row and used feature.
        """
        return self._with(d.Quantize(index))

    # --- reductions ------------------------------------------------------------------

    def atomic_reduce(self, index: str) -> Schedule:
        """Add the results of a tree loop's iterations with atomic operations.

        This has no effect on exact sums, which keep their order.

        Parameters
        ----------
        index : str
            A loop over trees that is parallel or mapped to a GPU.
        """
        return self._with(d.AtomicReduce(index))

    def shared_reduce(self, index: str) -> Schedule:
        """Keep the partial results of a tree loop in the GPU's shared memory.

        If the leaves of exact sums do not fit, a block adds them chunk by chunk.

        Parameters
        ----------
        index : str
            A loop over trees that is mapped to a GPU.
        """
        return self._with(d.SharedReduce(index))

    def vector_reduce(self, index: str, width: int) -> Schedule:
        """Add the partial results of a tree loop with SIMD instructions.

        Parameters
        ----------
        index : str
            A parallel loop over trees.
        width : {2, 4, 8, 16, 32, 64}
            Numbers added at a time.
        """
        return self._with(d.VectorReduce(index, _whole(width)))

    # --- the model -------------------------------------------------------------------

    def tile_nodes(
        self, size: int, kind: str | Sequence[Sequence[int]] = "uniform"
    ) -> Schedule:
        """Group up to ``size`` nodes of a tree into a tile, a node with many children.

        All tests of a tile are compared at once.

        Parameters
        ----------
        size : int
            Nodes in a tile, 1 to 8; 3, 7, 15 or 31 for complete tiles.
        kind : {"uniform", "probability", "complete"}, or list of lists of int
            "uniform" fills tiles breadth-first, "probability" with the nodes that most
            training rows pass, "complete" with whole levels (``represent("tiles")``).
            Or tiles of your own (Treebeard §3.5): for each tree, the number of each
            node's tile, in the order of ``load_forest``. Inner nodes with equal numbers
            share a tile. Leaves have -1, or a number of their own.

        Notes
        -----
        Good for: fewer loads in a walk, which do not depend on each other.
        Costs: tests that a row does not need, and a table look-up per hop.
        """
        return self._with(d.TileNodes(_whole(size), d.tile_kind(kind)))

    def pad_trees(self) -> Schedule:
        """Pad each tree until its leaves are equally deep, so that walks need no check.

        Costs: memory, exponential in the depth for unbalanced trees.
        """
        return self._with(d.PadTrees())

    def reorder_trees(self) -> Schedule:
        """Sort trees by depth and shape, so that adjacent trees have similar walks.

        Costs: exact sums store one leaf value per tree, to add them in model order.
        """
        return self._with(d.ReorderTrees())

    def represent(self, representation: str) -> Schedule:
        """Choose how the forest lies in memory.

        Parameters
        ----------
        representation : str
            "sparse" (the default), "array", "reorg", "bitsliced", "lanes", "pieces",
            "tiles", or another registered representation.
        """
        return self._with(d.Represent(representation))

    # --- what a schedule is ----------------------------------------------------------

    @property
    def kind(self) -> d.ScheduleKind:
        """The kind of target: "gpu" if a loop is mapped to one, else "cpu"."""
        return bind.kind_of(self.directives)

    @staticmethod
    def preset(name: str, **sizes: int) -> Schedule:
        """Return a known strategy by name.

        Parameters
        ----------
        name : str
            One of ``skforge.schedule.presets.PRESETS``, such as "xgboost".
        **sizes : int
            Sizes that differ from the strategy's defaults.

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
        import_module("skforge.schedule.presets")  # which imports this module
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
        return bind.bind(self, _count(forest))

    def explain(self, forest: Forest | int) -> str:
        """Draw the loops and describe each directive in one line.

        Parameters
        ----------
        forest : Forest or int
            The forest, or just its number of trees.

        Returns
        -------
        str
            The text.
        """
        loops = self.loop_nest(forest)
        lines = bind.explain(self.directives, loops)
        return "\n".join([str(loops), "", *lines]) if lines else str(loops)

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
        return serialize.dumps(self.directives)

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
            If the text is not a schedule, or was written by a later version.
        """
        return cls(serialize.loads(text))


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
    plain = type(value) in (int, bool)
    return int(value) if isinstance(value, Integral) and not plain else value
