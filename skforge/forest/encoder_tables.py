"""The tables by which statistics of combinations are found.

Most combinations have one or two categories, and flags beside them. For these, a
category is its rank among the hashes that occur in their keys, found once for all of
them, and the statistics lie in a table by ranks and flags. Keys can be turned back into
hashes, as they are sums of hashes times powers of one number modulo 2^64, so that the
tables of one category are whole. A key has about one pair of hashes that is none of
training's, too, whose hashes are *strange*: rows with one of them, and combinations
without tables, are looked up by the hash of the combination.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, product
from math import hypot, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, Int64s, Uint64s
from skforge.forest.categories import EQUAL, HASH, MULTIPLIER, HashedCategories

#: Most flags beside the categories of a table, and most places of a table for each key,
#: and for none.
_MOST_FLAGS, _MOST_PLACES, _FEW_PLACES = 4, 8, 4096
#: Most keys with all of their flags that are turned back into one hash, and into two.
_MOST_WORDS = {1: 1 << 22, 2: 1 << 15}
#: Least share of keys that are pairs of known hashes, so that few rows have others.
_MOSTLY = 0.9
_WORD, _NONE = 1 << 64, np.zeros(0, np.int32)
#: A factor of hashes of 32 bits, whose highest bits choose a slot; each column takes
#: that of ``_FACTORS`` powers which puts the fewest into slots of others, so that the
#: first is the last in most rows.
_SPREAD, _FACTORS = 0x9E3779B9, 48
#: Hashes of a column up to which this is tried.
_MANY = 128

#: How many registers of 64 bytes, which are permuted, the places of ranks take; 0 is
#: more.
REGISTERS = 1, 2, 4, 0
#: The kinds of tables: how many categories and flags they have, and these registers.
KINDS = [*product((1, 2), range(_MOST_FLAGS + 1), REGISTERS)]

#: The sizes that the code is given, and its arrays with their dtypes.
SIZES = (
    *("width", "n_columns", "n_values", "n_ranked", "n_dense", "n_hashed"),
    # those that are in both, last in one and first in the other
    *("n_both", "n_statistics"),
)
ARRAYS = {
    # what parts of combinations read: kinds, columns, and borders or hashes
    **dict.fromkeys(("value_kind", "value_column", "value_number"), "i4"),
    # the first value of each kind, behind ranks, and the end
    "value_first": "i8",
    # of each column with ranks, and then of their strange hashes: the first slot, and
    # what leaves the bits of a slot after which factor
    **{"slot_start": "i8", "slot_shift": "i4", "slot_factor": "i4"},
    **{"slot_hash": "i4", "slot_rank": "i4"},  # rank 0: an empty slot
    # of combinations with tables: the first one of each kind, their parts (ranks
    # first), statistics, and the first bytes and sizes of a statistic's table
    **{"dense_kind": "i8", "dense_part": "i8", "dense_value": "i4"},
    **{"dense_factor": "i4", "dense_statistic": "i8", "dense_end": "i8"},
    **{"dense_byte": "i8", "dense_size": "i8"},
    # of others: also where keys begin by their highest bits
    **{"part": "i8", "part_value": "i4", "start_place": "i8", "start": "i4"},
    **{"shift": "i8", "probes": "i8", "key_place": "i8", "key": "i8"},
    **{"statistic": "i8", "statistic_end": "i8", "byte": "i8"},
    "table": "u1",
}


#: Known hashes of columns, ascending.
_Ranks: TypeAlias = dict[int, Int32s]


class _Combination(NamedTuple):
    parts: list[tuple[int, int, int]]  # kinds, columns, and borders or hashes
    key: Uint64s
    bucket: NDArray[np.uint8]  # (n_keys + 1, n_statistics)
    first: int  # statistic

    @property
    def columns(self) -> list[int]:
        return [column for kind, column, _ in self.parts if kind == HASH]

    def may_have_table(self) -> bool:
        n_flags = len(self.parts) - len(self.columns)
        most = _MOST_WORDS.get(len(self.columns), -1)
        return n_flags <= _MOST_FLAGS and len(self.key) << n_flags <= most

    def fits(self, ranks: _Ranks) -> bool:
        places = prod(len(ranks[column]) + 1 for column in self.columns)
        places <<= len(self.parts) - len(self.columns)
        most = max(_FEW_PLACES, _MOST_PLACES * len(self.key))
        return places <= most and places * self.bucket.shape[1] < 2**31


class _Hashes(NamedTuple):
    hashes: list[Int32s]  # of each category
    flags: Array  # bits of a number, in the order of the parts
    key: Array

    def are_known(self, columns: list[int], ranks: _Ranks) -> list[Bools]:
        known = (ranks.get(column, _NONE) for column in columns)
        return [np.isin(*pair) for pair in zip(self.hashes, known, strict=True)]


def _combinations(hashed: HashedCategories) -> list[_Combination]:
    arrays = hashed.part_kind, hashed.part_column, hashed.part_value
    parts = [*zip(*(array.tolist() for array in arrays), strict=True)]
    combinations, offset = [], 0
    offsets = hashed.part_offset, hashed.key_offset, hashed.statistic_offset
    for (p, q), (k, m), (s, t) in zip(*map(pairwise, offsets), strict=True):
        size = int((m - k + 1) * (t - s))
        bucket = hashed.bucket[offset : offset + size].reshape(m - k + 1, t - s)
        combinations.append(_Combination(parts[p:q], hashed.key[k:m], bucket, int(s)))
        offset += size
    return combinations


#: The number of each thing that parts of combinations read.
_Values: TypeAlias = "defaultdict[tuple[int, int, int], int]"


def tables_of(hashed: HashedCategories) -> tuple[list[int], list[Array]]:
    combinations = _combinations(hashed)
    hashes_of = [_hashes_of(c) if c.may_have_table() else None for c in combinations]
    ranks = _ranks(combinations, hashes_of)
    for i, (c, some) in enumerate(zip(combinations, hashes_of, strict=True)):
        if some and len(c.columns) == 2:
            first, last = some.are_known(c.columns, ranks)
            n_keys = np.count_nonzero(np.bincount(some.key[first & last]))
            if n_keys < _MOSTLY * len(c.key) or not c.fits(ranks):
                hashes_of[i] = None
    ranks = _ranks(combinations, hashes_of)  # pairs without tables add none
    dense: list[tuple[_Combination, _Hashes]] = []
    both, others = [], []
    for c, hashes in zip(combinations, hashes_of, strict=True):
        if hashes and c.fits(ranks):
            dense.append((c, hashes))
            both += [c] * (len(c.columns) > 1)
        else:
            others.append(c)
    ranked = sorted({column for c, _ in dense for column in c.columns})
    values = _values_of(ranked, [c for c, _ in dense], [*both, *others])
    tables: list[Array] = []
    strange: dict[int, list[Array]] = {column: [] for column in ranked}
    arrays = _of_dense(dense, ranks, values, tables, strange)
    arrays |= _of_others([*both, *others], values, tables)
    known_hashes = [ranks[column] for column in ranked]
    arrays |= _slots(known_hashes + [_distinct(strange[c]) for c in ranked])
    known = np.array([*values], np.int64).reshape(-1, 3)
    kinds = known[len(ranked) :, 0]  # ascending
    arrays["value_first"] = len(ranked) + np.searchsorted(kinds, np.arange(EQUAL + 2))
    known = np.pad(known, ((0, 16), (0, 0)))  # vectors are read of the last ones
    arrays |= dict(zip(list(ARRAYS)[:3], known.T, strict=True))
    # registers are read of the last ones, too
    arrays["table"] = np.concatenate([*tables, np.zeros(256, np.uint8)])
    data = [np.ascontiguousarray(arrays[name], dtype) for name, dtype in ARRAYS.items()]
    sizes = [
        *(hashed.n_features, hashed.n_columns, len(values), len(ranked)),
        *(len(dense), len(both) + len(others), len(both)),
        hashed.n_features - hashed.n_columns,
    ]
    return sizes, data


def _values_of(
    ranked: Sequence[int],
    dense: Sequence[_Combination],
    others: Sequence[_Combination],
) -> _Values:
    """Return the number of all that is read: of ranks, and then by kind."""
    values: _Values = defaultdict()
    values.default_factory = values.__len__
    for column in ranked:
        _ = values[HASH, column, 1]
    parts = {part for c in dense for part in c.parts if part[0] != HASH}
    for part in sorted(parts.union(*(c.parts for c in others))):
        _ = values[part]
    return values


def known_hashes(hashed: HashedCategories, strange: bool = True) -> list[Int32s]:
    """Return the hashes of each column that the model has, as far as they stand alone.

    Those that occur only together with others cannot be told from the model. Without
    ``strange`` ones, rows are looked up in the tables by ranks.
    """
    sizes, arrays = tables_of(hashed)
    a = dict(zip(ARRAYS, arrays, strict=True))
    n_ranked = sizes[SIZES.index("n_ranked")]
    columns = a["value_column"][:n_ranked].tolist()
    found: list[list[Int32s]] = [[] for _ in hashed.is_category]
    ends = np.append(a["slot_start"], len(a["slot_hash"])).tolist()
    slots = [slice(*pair) for pair in pairwise(ends)]
    for column, some in zip((1 + strange) * columns, slots, strict=False):
        found[column].append(a["slot_hash"][some][a["slot_rank"][some] > 0])
    for place in np.flatnonzero(hashed.part_kind == EQUAL):
        column = hashed.part_column[place]
        found[column].append(hashed.part_value[place : place + 1])
    return [_distinct(hashes) for hashes in found]


def _hashes_of(c: _Combination) -> _Hashes:
    powers = [pow(MULTIPLIER, len(c.parts) + 1 - i, _WORD) for i in range(len(c.parts))]
    of_hash = [x for x, (kind, *_) in zip(powers, c.parts, strict=True) if kind == HASH]
    of_flag = [x for x, (kind, *_) in zip(powers, c.parts, strict=True) if kind != HASH]
    flags = np.arange(1 << len(of_flag), dtype=np.uint64)
    first, last = of_hash[0], of_hash[-1]
    inverse = pow(last, -1, _WORD)
    with np.errstate(over="ignore"):
        residue = np.repeat(c.key[:, None], len(flags), axis=1)
        for bit, power in enumerate(of_flag):
            residue -= (flags >> np.uint64(bit) & np.uint64(1)) * np.uint64(power)
        residue *= np.uint64(inverse)
        if len(of_hash) == 1:
            points = residue.view(np.int64)[None, None]
        else:
            points = _pairs_of(residue.view(np.int64), first * inverse % _WORD)
    fits = (points == points.astype(np.int32)).all(axis=0)
    _, key, flag = np.nonzero(fits)
    return _Hashes([x[fits].astype(np.int32) for x in points], flag, key)


def _pairs_of(total: Int64s, factor: int) -> Int64s:
    """Return candidates for x and y with ``factor * x + y = total`` modulo 2^64.

    Among them, of shape (2, n, *total.shape), are all of 32 bits: the differences of
    solutions are a lattice, whose shortest basis is found as by Lagrange.
    """
    short, long = (1, -factor), (0, _WORD)
    while True:
        if hypot(*short) > hypot(*long):
            short, long = long, short
        dot = short[0] * long[0] + short[1] * long[1]
        norm = short[0] ** 2 + short[1] ** 2
        if not (times := (2 * dot + norm) // (2 * norm)):
            break
        long = long[0] - times * short[0], long[1] - times * short[1]
    area = short[0] * long[1] - short[1] * long[0]
    # near 0, from the solution (0, total); steps from there reach all of 32 bits
    x = np.rint(total * (-long[0] / area)).astype(np.int64)
    y = np.rint(total * (short[0] / area)).astype(np.int64)
    widths = [abs(u) + abs(v) for u, v in zip(short, long, strict=True)]
    far = 2**31 + max(widths) // 2 + 2**20  # x and y are rounded twice
    steps = (far * (abs(v[0]) + abs(v[1])) // abs(area) for v in (long, short))
    i, j = (
        np.arange(-most, most + 1).reshape(-1, *[1] * total.ndim) - count
        for most, count in zip(steps, (x, y), strict=True)
    )
    grid = [i[:, None] * u + j * v for u, v in zip(short, long, strict=True)]
    points = np.stack([grid[0], grid[1] + total])
    return points.reshape(2, len(i) * len(j), *total.shape)


def _ranks(
    combinations: Sequence[_Combination], hashes: Sequence[_Hashes | None]
) -> _Ranks:
    """Return the hashes that occur in keys, by column, ascending.

    Of a key that no pair of them explains, those are most likely training's that make a
    pair with one of them.
    """
    lists: dict[int, list[Array]] = {}
    for c, some in zip(combinations, hashes, strict=True):
        if some and len(c.columns) == 1:
            lists.setdefault(c.columns[0], []).append(some.hashes[0])
    ranks = {column: _distinct(h) for column, h in lists.items()}
    for c, some in zip(combinations, hashes, strict=True):
        if some and len(c.columns) == 2:
            first, last = some.are_known(c.columns, ranks)
            unexplained = ~np.isin(some.key, some.key[first & last])
            for i, other in enumerate((last, first)):
                more = some.hashes[i][unexplained & other]
                lists.setdefault(c.columns[i], []).append(more)
    return {column: _distinct(h) for column, h in lists.items()}


def _distinct(hashes: Sequence[Array]) -> Int32s:
    """Return hashes once each, ascending: ``np.unique`` takes six times as long."""
    ascending = np.sort(np.concatenate([_NONE, *hashes]))
    is_first = np.ones(len(ascending), np.bool_)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_first]


def _kind_of(c: _Combination, ranks: _Ranks) -> int:
    n_ranks = prod(len(ranks[column]) + 1 for column in c.columns)
    registers = next((n for n in REGISTERS if n_ranks <= 64 * n), 0)
    n_categories = len(c.columns)
    return KINDS.index((n_categories, len(c.parts) - n_categories, registers))


def _of_dense(
    dense: Sequence[tuple[_Combination, _Hashes]],
    ranks: _Ranks,
    values: _Values,
    tables: list[Array],
    strange: dict[int, list[Array]],
) -> dict[str, Any]:
    """Return the arrays of combinations with tables by ranks and flags.

    ``strange`` gets hashes of pairs that are not in the tables.
    """
    a: dict[str, list[Any]] = {n: [] for n in ARRAYS if n.startswith("dense")}
    kinds = [_kind_of(c, ranks) for c, _ in dense]
    n_kinds = np.arange(len(KINDS) + 1)
    a["dense_kind"] = np.searchsorted(np.sort(kinds), n_kinds).tolist()
    a["dense_part"].append(0)
    size = sum(map(len, tables))
    for i in np.argsort(kinds, kind="stable").tolist():
        c, (hashes, flags, keys) = dense[i]
        others = [part for part in c.parts if part[0] != HASH]
        a["dense_value"] += [values[HASH, column, 1] for column in c.columns]
        a["dense_value"] += map(values.__getitem__, others)
        entry, known, n_places = np.zeros(len(keys), np.int64), keys >= 0, 1
        for column, some in zip(c.columns, hashes, strict=True):
            rank = np.searchsorted(ranks[column], some)
            is_known = ranks[column].take(rank, mode="clip") == some
            strange[column].append(some[known & ~is_known])
            known &= is_known
            entry += (rank + 1) * n_places
            a["dense_factor"].append(n_places)
            n_places *= len(ranks[column]) + 1
        a["dense_factor"] += [n_places << bit for bit in range(len(others))]
        a["dense_part"].append(len(a["dense_value"]))
        a["dense_statistic"].append(c.first)
        a["dense_end"].append(c.first + c.bucket.shape[1])
        a["dense_byte"].append(size)
        a["dense_size"].append(n_places << len(others))
        table = np.repeat(c.bucket[-1][:, None], a["dense_size"][-1], axis=1)
        table[:, (flags * n_places + entry)[known]] = c.bucket[keys[known]].T
        tables.append(table.ravel())
        size += table.size
    return a


def _of_others(
    others: Sequence[_Combination], values: _Values, tables: list[Array]
) -> dict[str, Any]:
    names = [*ARRAYS][list(ARRAYS).index("part") : -1]
    a: dict[str, list[Any]] = {name: [] for name in names}
    a["part"].append(0)
    keys, starts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    size, n_keys, n_starts = sum(map(len, tables)), 0, 0
    for c in others:
        a["part_value"] += map(values.__getitem__, c.parts)
        a["part"].append(len(a["part_value"]))
        # twice as many starts as keys, and four times at most
        bits = max(1, len(c.key).bit_length() + 1)
        slots = (c.key >> np.uint64(64 - bits)).astype(np.int64)
        start = np.append(0, np.cumsum(np.bincount(slots, minlength=1 << bits)))
        a["probes"].append(int(np.diff(start).max()))
        a["shift"].append(64 - bits)
        a["start_place"].append(n_starts)
        a["key_place"].append(n_keys)
        width = c.bucket.shape[1]
        a["statistic"].append(c.first)
        a["statistic_end"].append(c.first + width)
        a["byte"].append(size)
        tables.append(np.concatenate([c.bucket[-1:], c.bucket[:-1]]).ravel())
        # what is probed behind the last key begins with other bits
        more = np.zeros(a["probes"][-1], np.uint64)
        keys += [c.key, more]
        starts.append(start)
        size, n_starts = size + tables[-1].size, n_starts + len(start)
        n_keys += len(c.key) + len(more)
    whole: dict[str, Any] = {**a}
    whole["key"] = np.concatenate(keys).view(np.int64)
    whole["start"] = np.concatenate(starts)
    return whole


def _slots(ranked: Sequence[Int32s]) -> dict[str, Any]:
    first, shift, factors = [], [], []
    hashes, ranks = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    size = 0
    for known in ranked:
        # more slots of few hashes, which fit L1
        bits = len(known).bit_length() + (1 if len(known) > _MANY else 2)
        factor, slot = _spread(known, bits)
        order = np.argsort(slot, kind="stable")
        numbers = np.arange(len(known))
        slots = np.maximum.accumulate(slot[order] - numbers) + numbers
        length = max(1 << bits, int(slots[-1]) + 1 if len(slots) else 0) + 1
        hash_, rank = np.zeros(length, np.int32), np.zeros(length, np.int64)
        hash_[slots], rank[slots] = known[order], order + 1
        first.append(size)
        shift.append(32 - bits)
        factors.append(factor)
        hashes.append(hash_)
        ranks.append(rank)
        size += length
    return {
        "slot_start": first,
        "slot_shift": shift,
        "slot_factor": np.array(factors, np.uint32).view(np.int32),
        "slot_hash": np.concatenate(hashes),
        "slot_rank": np.concatenate(ranks),
    }


def _spread(known: Int32s, bits: int) -> tuple[int, Int64s]:
    """Return a factor, and the slots that the high bits of products choose."""
    best, found = -1, (0, np.zeros(0, np.int64))
    for power in range(1, 1 + (_FACTORS if len(known) <= _MANY else 1)):
        factor = pow(_SPREAD, power, 1 << 32)
        with np.errstate(over="ignore"):
            spread = known.view(np.uint32) * np.uint32(factor)
        slot = (spread >> np.uint32(32 - bits)).astype(np.int64)
        apart = len(np.unique(slot))
        if apart > best:
            best, found = apart, (factor, slot)
        if apart == len(known):
            break
    return found
