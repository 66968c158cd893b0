"""Counts of a forest that its costs depend on, made in one pass over its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._compat import cached_property
from skforge._typing import Float64s, Int32s, Int64s
from skforge.compiler.binning.buckets import ROW_REGISTERS
from skforge.compiler.binning.category_rows import set_groups
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import WIDE_PART, is_wide, tile_starts
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.layouts.bitsliced import predicate_table, sliced_layout
from skforge.compiler.layouts.bitsliced.predicate_lines import narrows
from skforge.compiler.layouts.bitsliced.predicate_table import SETS, SETS_A_BYTE
from skforge.compiler.layouts.even_trees import even_trees, leaf_counts
from skforge.compiler.layouts.lanes.lane_sums import sum_registers, sums_together
from skforge.compiler.layouts.lanes.lanes import LanesCost, pairs_cost
from skforge.compiler.layouts.pieces.cut import sizes
from skforge.compiler.layouts.pieces.pieces import MOST, MOST_COLUMNS, USUAL
from skforge.compiler.layouts.tiles import tile_layout
from skforge.compiler.layouts.tiles.tile_rows import TOP_FEATURES
from skforge.compiler.layouts.tiles.tile_rows import refusal as values_refusal
from skforge.compiler.layouts.tiles.tiles import MAX_COLUMNS, MAX_TREES
from skforge.compiler.target import Target
from skforge.forest.arrays import Comparison, Missing, fronts_of
from skforge.forest.bins import column_count, tested_columns
from skforge.forest.forest import Forest

Counts = Float64s

#: Bytes of a cache line.
LINE = 64

#: Shares are counted down to 2 ** -RAREST.
RAREST = 40

_SHARES = 2.0 ** -np.arange(RAREST)

#: Steps of the search for the number of rows whose lines fill a cache.
HALVINGS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Numbers of cache lines by the share of rows that reach them: 1, 1/2 and so on.

    A node is reached by a share of the rows, which the training rows tell.
    """

    lines: Counts

    @classmethod
    def of(
        cls, rarity: NDArray[np.integer[Any]], size: float, part: float = 1
    ) -> Reach:
        """Count the lines of items of ``size`` bytes that lie in order.

        One of about ``2 ** rarity`` rows reaches an item; a line that holds several is
        reached by as many more rows. The items are a ``part`` of all.
        """
        common = round(log2(max(1.0, LINE / size)))
        counts = np.bincount(rarity, minlength=RAREST)
        counts = np.append(counts[: common + 1].sum(), counts[common + 1 :])
        return cls(np.asarray(np.pad(counts, (0, common)) * (size / LINE / part)))

    @property
    def size(self) -> float:
        return float(self.lines.sum()) * LINE

    def distinct(self, rows: Counts) -> Counts:
        few, place = np.unique(rows, return_inverse=True)
        missed = np.power(1.0 - _SHARES, few[:, None])
        lines = (1.0 - missed) @ self.lines
        return np.asarray(lines[place.reshape(rows.shape)])

    def beside(self, other: Reach, times: float = 1) -> Reach:
        """Return these lines and ``times`` those of another, as one."""
        return Reach(self.lines + times * other.lines)

    def missed(self, cache: float, rows: Counts) -> Counts:
        """Return the lines of a row that a cache does not hold any more.

        It holds the lines of the last rows, the common ones always. So fewer lines are
        missed of skewed trees than of bushy ones of that size.
        """
        low, high = 0.0, float(np.log2(np.max(rows)))
        for _ in range(HALVINGS):
            middle = np.array([(low + high) / 2])
            full = self.distinct(2.0**middle)[0] * LINE > cache
            low, high = (low, middle[0]) if full else (middle[0], high)
        lines = _SHARES * (1.0 - _SHARES) ** 2.0**low @ self.lines
        return np.where(self.distinct(rows) * LINE > cache, lines, 0.0)


def shares(forest: Forest, first: int = 0, last: int | None = None) -> Counts:
    """Return the share of rows that reach each node of some trees, or of all.

    The leaves weigh as much as training rows ended there, or else all the same.
    """
    last = forest.n_trees if last is None else last
    offset = forest.tree_offset[first : last + 1]
    nodes = slice(*offset[[0, -1]])
    leaves, cover = forest.leaf[nodes] >= 0, forest.cover[nodes]
    weight = leaves.astype(np.float64)
    if len(cover) and float(cover[leaves].sum()) > 0:
        weight[leaves] = np.maximum(cover[leaves], 0.0)
    for begin, fronts in fronts_of(forest.left, forest.right, offset):
        below = np.zeros(0)  # of the children of a level, side by side
        for front in reversed(list(fronts)):
            at = front + (begin - offset[0])
            level = weight[at]
            level[~leaves[at]] = below[::2] + below[1::2]
            weight[at] = below = level
    whole = np.repeat(weight[offset[:-1] - offset[0]], np.diff(offset))
    return np.asarray(weight / np.maximum(whole, 1e-300))


def rarity(share: Counts) -> NDArray[np.integer[Any]]:
    """Return k for shares of about ``2 ** -k``."""
    exponent = np.frexp(np.maximum(share, _SHARES[-1]) * 2**0.5)[1]  # of 0, 0
    return np.asarray(np.clip(1 - exponent, 0, RAREST - 1))


#: Levels of a search whose thresholds registers hold.
NEAR_LEVELS = 8

#: Bytes of a node that is walked, besides its threshold, and of one below lanes.
WALKED_NODE, REST_NODE = 4, 12


@dataclass(frozen=True, slots=True, eq=False)
class TileCounts:
    visits: float  # tiles that a row visits in a tree, besides the top
    lines: Reach  # of tiles and leaves
    top: int  # levels compared before them


@dataclass(frozen=True, slots=True)
class PieceCounts:
    pieces: int  # of all trees
    most: int  # of a tree, at most
    top: int  # tests above the pieces
    below: float  # tests in pieces that a row meets

    @classmethod
    def of(cls, forest: Forest) -> PieceCounts:
        child = np.stack([forest.left, forest.right], axis=1)
        size, _ = sizes(child, forest.node_depths(), forest.leaf)
        top = np.flatnonzero(size > USUAL)
        roots = forest.tree_offset[:-1]
        begins = np.concatenate([roots, child[top].reshape(-1)])
        begins = begins[size[begins] <= USUAL]
        tree = np.searchsorted(forest.tree_offset, begins, side="right")
        below = float((shares(forest)[begins] * size[begins]).sum())
        most = int(np.bincount(tree).max(initial=0))
        return cls(max(1, len(begins)), most, len(top), below)


@dataclass(frozen=True, slots=True)
class BitTests:
    """The predicates of bit logic, of all trees or of one tile after another."""

    tiles: int
    lines: float  # thresholds that are searched
    levels: float  # of the searches of all columns together
    direct: float  # thresholds that are compared
    set_tables: float  # tables of eight sets, by 64 entries
    single_sets: float  # sets that have none
    most: float  # lines of a tile


class ForestCounts(ForestShape):
    def __init__(self, forest: Forest, target: Target) -> None:
        super().__init__(forest)
        self.target = target
        registers = Registers.of(target, forest.threshold.dtype)
        used = tested_columns(forest)
        self.trees = max(1, forest.n_trees)  # none costs as a single leaf
        self.columns = len(used)  # features that are tested
        #: Vectors of a row that hold one of them, and values of a row in a register.
        self.column_tiles = len(tile_starts(used, forest.n_features, registers.lanes))
        self.value_lanes = registers.lanes
        self.leaf_vectors = -(-8 * self.leaf_bytes // target.vector_bits)
        #: Whether nodes disagree about missing values.
        self.asks = _asks(forest)

        # predicates of bit logic, and trees: nodes of folded trees with padding, the
        # operations of others, and registers in which 64 rows look up leaves
        ordered = forest.comparison < Comparison.IN
        of_column = np.bincount(forest.feature[ordered])
        of_column = of_column[of_column > 0]
        vector = target.vector_bits // 8
        #: Whether the blocks of bits that have several parts take rows in parts.
        self.wide = is_wide(forest, vector, 2 * WIDE_PART)
        if not self.wide and narrows(forest, "le"):  # as float32
            registers = Registers.of(target, np.dtype(np.float32))
        self.bit_lanes, self._registers = registers.lanes, registers
        searches, sets = _thresholds(of_column, registers), _sets(forest)
        most = searches[0] + searches[2] + sets[1] + 8 * sets[0]
        self._bit_tests = {0: BitTests(1, *searches, *sets, most)}
        self.sets = int((~ordered).sum())
        self.folded_nodes, self.listed, self.look_ups, mostly = _bit_trees(forest)
        #: Whether one instruction of vectors chooses for 64 rows, too.
        self.muxes_in_vectors = mostly and target.has_mask_registers
        self.looks_up = sliced_layout.looks_up(forest, target)
        self.permutes = self.look_ups  # of registers, or of their parts
        if not target.has("avx512vbmi"):
            parts = np.ceil(2.0 ** sliced_layout.code_bits(forest) / 16).sum()
            self.permutes = int(parts) * forest.leaf_value[:1].nbytes

        self.lanes = LanesCost.of(forest, target)
        self.pairs = pairs_cost(forest, target)
        # in lanes, of those that are in registers
        self.sums_together = sums_together(forest) if sum_registers(forest) else 1
        self.set_groups = len(set_groups(forest))  # columns of look-ups of categories

        # codes of tiles, and levels of their searches: all, and those of thresholds
        # that are not in registers
        self.code_columns = column_count(forest, merge=True)
        levels = np.ceil(np.log2(of_column + 1))
        self.code_searches = int(levels.sum())
        self.far_searches = int(np.maximum(levels - NEAR_LEVELS, 0).sum())

        # walks, tiles of codes and of values, and the nodes below lanes
        item, lines = forest.threshold.itemsize, _Lines.of(forest)
        three, four = (tile_layout.top_levels(forest, n, target) for n in (3, 4))
        values_top = 0 if item > 4 or len(used) > TOP_FEATURES else three
        self.walk_depth = lines.walked  # mean depth of a row's walk of a tree
        self.three = lines.tiles(3, three, 3)
        self.four = lines.tiles(4, four, 3)
        self.values = lines.tiles(3, values_top, 2 + item)
        self.value_rows = lines.tiles(3, 0, 2 + item)
        #: Whether registers hold a row's values.
        self.row_fits = 8 * self.row_bytes <= ROW_REGISTERS * target.vector_bits
        self.leaves = lines.of_leaves
        self.walked = lines.below(0, item + WALKED_NODE)
        self.rest = lines.below(self.lanes.levels, REST_NODE)
        self.pair_rest = lines.below((self.pairs or self.lanes).levels, REST_NODE)

        most = int(np.diff(forest.tree_offset).max(initial=0)) // 2 + 1
        self.loads_deep = most > 1 << sliced_layout.MAX_BITS  # leaves of even trees
        permutes = target.has("avx2") and most <= tile_layout.MAX_LEAVES
        self._allows_any_tiles = permutes and forest.n_predicates > 0
        self.allows_lanes = self.lanes.search < float("inf")

    def tiles_of(self, kind: str, levels: int) -> TileCounts:
        """Return a kind of kernel's tiles, which have so many levels if of codes."""
        by_value = {"values": self.values, "value-row": self.value_rows}
        return by_value.get(kind) or (self.four if levels >= 4 else self.three)

    def bit_tests(self, trees: int) -> BitTests:
        """Count the predicates of tiles of so many trees; 0: those of all at once."""
        if trees >= self.n_trees:
            trees = 0
        if trees not in self._bit_tests:
            self._bit_tests[trees] = self._tests_of_tiles(trees)
        return self._bit_tests[trees]

    def _tests_of_tiles(self, trees: int) -> BitTests:
        forest, whole = self.forest, self._bit_tests[0]
        order = np.arange(forest.n_trees, dtype=np.int32)
        tests = predicate_table.TreeTileTests.of(forest, order, trees)
        size = np.diff(tests.offset)
        column = np.repeat(np.arange(len(size)) * forest.n_features, size)
        column += forest.feature[tests.tests]
        ordered = forest.comparison[tests.tests] < Comparison.IN
        of_column = np.bincount(column[ordered])
        searches = _thresholds(of_column[of_column > 0], self._registers)
        # sets are tested in other tiles as often as thresholds, or nearly so
        again = len(tests.tests) / max(1, forest.n_predicates)
        sets = again * whole.set_tables, again * whole.single_sets
        most = whole.most * int(size.max(initial=0)) / max(1, forest.n_predicates)
        return BitTests(len(size), *searches, *sets, most)

    @cached_property
    def allows_tiles(self) -> bool:
        return self._allows_any_tiles and self.n_columns <= MAX_COLUMNS

    @cached_property
    def pieces(self) -> PieceCounts:
        return PieceCounts.of(self.forest)

    @cached_property
    def piece_columns(self) -> int:
        """Columns of codes that are compared as signed words."""
        return column_count(self.normal, merge=True, dtype=np.int16)

    @cached_property
    def allows_pieces(self) -> bool:
        """Whether pieces are possible, and may beat tiles.

        Not with AVX-512: on Zen 4, tiles took .53 to 1.0 of the time of pieces in 13
        deep forests, 512 and 4,096 rows.
        """
        if self.target.has_mask_registers or not self.allows_tiles:
            return False
        deep = int(np.diff(self.forest.tree_offset).max()) // 2 > USUAL
        if not deep or bool((self.normal.comparison > Comparison.LE).any()):
            return False
        few_columns = self.piece_columns <= MOST_COLUMNS
        return few_columns and self.pieces.most <= MOST + 1

    @property
    def allows_tile_rows(self) -> bool:
        return self.allows_tiles and self.n_trees <= MAX_TREES

    @cached_property
    def allows_value_tiles(self) -> bool:
        return self._allows_any_tiles and values_refusal(self.normal) is None

    @property
    def allows_value_rows(self) -> bool:
        """Whether single rows may compare values: of 32 bits, as others lose to walks.

        (LightGBM, 40 and 50 trees of 63 and 127 leaves, 1,500 and 400 columns: 1.6 and
        1.2 of the time of walks and lanes.)
        """
        few, narrow = self.n_trees <= MAX_TREES, self.value_bytes == 4
        return self.allows_value_tiles and few and narrow


def counted(forest: Forest | ForestShape, target: Target) -> ForestCounts:
    if isinstance(forest, ForestCounts) and forest.target == target:
        return forest
    return ForestCounts(ForestShape.of(forest).forest, target)


def _thresholds(of_column: Int64s, registers: Registers) -> tuple[int, int, int]:
    """Count the thresholds of bit logic that are searched, levels, and compares.

    Levels are those of the searches of all columns together; buckets take as long as
    the levels from which there are any.
    """
    most = (1 << registers.levels) - 1
    if not most:
        return 0, 0, int(of_column.sum())
    whole, rest = np.divmod(of_column, most)
    searched = rest > predicate_table.DIRECT_LIMIT
    levels = np.ceil(np.log2(rest + 1)).clip(4, registers.buckets)[searched].sum()
    return (
        int((whole * most).sum() + rest[searched].sum()),
        int(whole.sum()) * min(registers.levels, registers.buckets) + int(levels),
        int(rest[~searched].sum()),
    )


def _sets(forest: Forest) -> tuple[int, int]:
    """Count tables of eight sets, by 64 entries, and the sets that have none."""
    of_sets = np.flatnonzero(forest.comparison >= Comparison.IN)
    words = np.diff(forest.category_offset)[of_sets]
    tables = single = 0
    most = max(SETS.values()) // 32
    for feature in np.unique(forest.feature[of_sets]):
        sets = words[forest.feature[of_sets] == feature]
        if sets.max() > most:
            single += len(sets)
        else:
            tables += -(-len(sets) // SETS_A_BYTE) * -(-int(sets.max()) // 2)
    return tables, single


def _asks(forest: Forest) -> bool:
    missing = forest.missing != Missing.NEVER
    left = forest.missing_left[missing]
    return bool(left.any() and not left.all())


def _bit_trees(forest: Forest) -> tuple[int, float, int, bool]:
    fold, even = sliced_layout.folds(forest), even_trees(forest)
    leaves, deep = leaf_counts(forest), even & ~fold
    bits = sliced_layout.code_bits(forest)
    entries = 2.0**bits
    item = forest.leaf_value.dtype.itemsize
    registers = float(np.ceil(entries / 128)[~deep].sum())
    look_ups = registers * item * forest.leaf_value.shape[1]
    listed = LIST_OPERATIONS * float(leaves[~(fold | even)].sum())
    # even trees have a node for each level
    nodes = np.where(even, bits, entries)[fold | even]
    mostly = bool(2 * (fold & ~even).sum() > len(fold))
    return int(nodes.sum()), listed, int(look_ups), mostly


#: Operations of a leaf of a tree that is not folded (unbalanced trees of 31 to 255
#: leaves: 1 to 1.25).
LIST_OPERATIONS = 1.15


#: Nodes in whose lines are counted; of larger forests, trees in so many groups stand
#: for all. Of 12 million nodes, a count of all takes 1.1 s.
COUNTED, GROUPS = 1 << 20, 16


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    """The nodes of a forest, for counts of the lines that hold them."""

    trees: int  # of the forest
    part: float  # the part of its trees that are counted
    depth: Int32s  # of inner nodes
    rarity: NDArray[np.integer[Any]]  # of inner nodes
    of_leaves: Reach
    walked: float  # inner nodes that a row passes in a tree

    @classmethod
    def of(cls, forest: Forest) -> _Lines:
        trees, some, firsts = forest.n_trees, forest.n_trees, [0]
        if forest.n_nodes > COUNTED and trees > GROUPS:
            some = max(1, trees * COUNTED // forest.n_nodes // GROUPS)
            firsts = [k * (trees - some) // (GROUPS - 1) for k in range(GROUPS)]
        part = some * len(firsts) / trees if trees else 1.0
        nodes = [slice(*forest.tree_offset[[k, k + some]]) for k in firsts]
        share = np.concatenate([shares(forest, k, k + some) for k in firsts])
        inner = np.concatenate([forest.leaf[of] < 0 for of in nodes])
        depth = np.concatenate([forest.node_depths()[of] for of in nodes])[inner]
        size = forest.leaf_value.dtype.itemsize * forest.leaf_value.shape[1]
        leaves, trees = Reach.of(rarity(share[~inner]), size, part), max(1, trees)
        walked = float(share[inner].sum()) / (trees * part)
        return cls(trees, part, depth, rarity(share[inner]), leaves, walked)

    def below(self, top: int, size: float) -> Reach:
        return Reach.of(self.rarity[self.depth >= top], size, self.part)

    def tiles(self, levels: int, top: int, slot: int) -> TileCounts:
        below = self.depth - top
        roots = self.rarity[(below >= 0) & (below % levels == 0)]
        visits = float((2.0**-roots).sum()) / (self.trees * self.part)
        lines = Reach.of(roots, tile_layout.tile_bytes(levels, False, slot), self.part)
        return TileCounts(visits, lines, top)
