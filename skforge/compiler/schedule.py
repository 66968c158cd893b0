"""The schedule: an immutable value that says how a forest is walked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from skforge.compiler.directives import (
    AtomicReduce,
    Cache,
    CachePredicates,
    Directive,
    GpuDimension,
    Interleave,
    PadTrees,
    Parallel,
    PeelWalk,
    Quantize,
    Reorder,
    ReorderTrees,
    Represent,
    SharedReduce,
    Specialize,
    Split,
    Tile,
    TileNodes,
    Unroll,
    UnrollWalk,
    Vectorize,
    VectorReduce,
)
from skforge.compiler.forest import Forest
from skforge.compiler.loop_nest import BoundNest, Kind, Nest, root_nest
from skforge.compiler.loop_nest_apply import apply, apply_all
from skforge.compiler.loop_nest_bind import bind, kind_of


@dataclass(frozen=True, slots=True)
class Schedule:
    """Directives, applied left to right to the loops over batch and tree.

    Every method returns a new schedule, and refuses at once what is not legal there.

    >>> s = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    >>> s
    Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    >>> eval(repr(s)) == s
    True
    """

    directives: tuple[Directive, ...] = ()

    def __post_init__(self) -> None:
        """Refuse directives that are not legal where they stand."""
        _nest_of(self.directives)

    def _with(self, directive: Directive) -> Schedule:
        return Schedule((*self.directives, directive))

    def __repr__(self) -> str:
        """Return the calls that make this schedule."""
        return "Schedule()" + "".join(f".{d}" for d in self.directives)

    def tile(self, index: str, outer: str, inner: str, size: int) -> Schedule:
        """Replace a loop by blocks."""
        return self._with(Tile(index, outer, inner, size))

    def split(self, index: str, first: str, second: str, at: int) -> Schedule:
        """Replace a loop by two loops, one after the other."""
        return self._with(Split(index, first, second, at))

    def reorder(self, *indices: str) -> Schedule:
        """Permute perfectly nested loops."""
        return self._with(Reorder(indices))

    def gpu_dimension(self, index: str, dimension: str) -> Schedule:
        """Map a loop to a GPU dimension."""
        return self._with(GpuDimension(index, dimension))

    def unroll(self, index: str) -> Schedule:
        """Repeat the body of a loop for each iteration."""
        return self._with(Unroll(index))

    def specialize(self, index: str) -> Schedule:
        """Separate code for each iteration of a tree loop."""
        return self._with(Specialize(index))

    def cache(self, index: str) -> Schedule:
        """Fetch the working set of an iteration beforehand."""
        return self._with(Cache(index))

    def parallel(self, index: str) -> Schedule:
        """Run the iterations of a loop on several threads."""
        return self._with(Parallel(index))

    def interleave(self, index: str, factor: int | None = None) -> Schedule:
        """Walk several trees or rows at the same time."""
        return self._with(Interleave(index, factor))

    def unroll_walk(self, index: str, depth: int) -> Schedule:
        """Walk without leaf checks, padding trees."""
        return self._with(UnrollWalk(index, depth))

    def peel_walk(self, index: str, depth: int) -> Schedule:
        """Walk the first hops without leaf checks."""
        return self._with(PeelWalk(index, depth))

    def atomic_reduce(self, index: str) -> Schedule:
        """Add up with atomics."""
        return self._with(AtomicReduce(index))

    def shared_reduce(self, index: str) -> Schedule:
        """Keep partial sums in shared memory."""
        return self._with(SharedReduce(index))

    def vector_reduce(self, index: str, width: int) -> Schedule:
        """Add up partial sums with vector instructions."""
        return self._with(VectorReduce(index, width))

    def tile_nodes(self, size: int, kind: str = "uniform") -> Schedule:
        """Group nodes of a tree into n-ary nodes."""
        return self._with(TileNodes(size, kind))

    def pad_trees(self) -> Schedule:
        """Pad each tree until its leaves are equally deep."""
        return self._with(PadTrees())

    def reorder_trees(self) -> Schedule:
        """Sort trees by depth and shape."""
        return self._with(ReorderTrees())

    def represent(self, representation: str) -> Schedule:
        """Choose how the forest lies in memory."""
        return self._with(Represent(representation))

    def vectorize(self, index: str) -> Schedule:
        """Walk rows in SIMD lanes."""
        return self._with(Vectorize(index))

    def cache_predicates(self, index: str) -> Schedule:
        """Evaluate each distinct predicate once for a block of rows."""
        return self._with(CachePredicates(index))

    def quantize(self, index: str) -> Schedule:
        """Keep rows as bin codes."""
        return self._with(Quantize(index))

    @property
    def kind(self) -> Kind:
        """The kind of target this is for: "gpu" if a loop is mapped to one."""
        return kind_of(self.directives)

    def loop_nest(self, forest: Forest | int) -> BoundNest:
        """Return the loops this schedule makes for a forest, or a number of trees."""
        n_trees = forest if isinstance(forest, int) else forest.n_trees
        return bind(self, n_trees)


# Directives are applied one by one while a schedule is written, so each prefix of it
# has been judged just before.
@lru_cache(maxsize=4096)
def _nest_of(directives: tuple[Directive, ...]) -> Nest:
    if not directives:
        return root_nest()
    if len(directives) > 50:  # a recursion that deep would not end well
        return apply_all(directives)
    return apply(_nest_of(directives[:-1]), directives[-1])
