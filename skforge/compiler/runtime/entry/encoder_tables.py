"""The tables by which statistics of combinations are found.

Most combinations have one category, and flags beside it. For these, a category is its
rank among the hashes that occur in their keys, found once for all of them, and the
statistics lie in a table by rank and flags. Keys can be turned back into hashes, as
every step of their hash is one-to-one, so that the tables are whole. Other combinations
are looked up by their hashes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.categories import HASH, MULTIPLIER, HashedCategories

Array = NDArray[Any]

#: Most flags beside a category of a table, and most places of a table for each key,
#: and for none.
_MOST_FLAGS, _MOST_PLACES, _FEW_PLACES = 8, 8, 4096
#: Most keys with all of their flags that are turned back into hashes.
_MOST_WORDS = 1 << 22
_INVERSE = pow(MULTIPLIER, -1, 2**64)
#: Multiplies hashes of 32 bits, whose highest bits choose a slot.
SPREAD = -1640531527

#: Kinds of tables that are looked up in registers: up to so many flags, by the registers
#: of 64 bytes that a category's ranks take, one more than the position.
REGISTER_FLAGS, REGISTERS = 4, (1, 2, 4)

#: The sizes that the code is given, and its arrays with their dtypes.
SIZES = (
    *("width", "n_columns", "n_values", "n_ranked", "n_dense", "n_hashed"),
    "n_statistics",
)
ARRAYS = {
    # what parts of combinations read: kinds, columns, and borders or hashes
    **dict.fromkeys(("value_kind", "value_column", "value_number"), "i4"),
    # of each column with ranks: its first slot, and what leaves the bits of a slot
    **{"slot_start": "i8", "slot_shift": "i4"},
    **{"slot_hash": "i4", "slot_rank": "i4"},  # rank 0: an empty slot
    # of combinations with tables: the first one of each kind, their parts (the rank
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


class _Combination(NamedTuple):
    parts: list[tuple[int, int, int]]  # kinds, columns, and borders or hashes
    key: NDArray[np.uint64]
    bucket: NDArray[np.uint8]  # (n_keys + 1, n_statistics)
    first: int  # statistic

    def is_alone(self) -> bool:
        """Tell whether it has one category, and few flags for its keys."""
        flags, words = len(self.parts) - 1, len(self.key) << len(self.parts) >> 1
        alone = [kind for kind, *_ in self.parts].count(HASH) == 1
        return alone and flags <= _MOST_FLAGS and words <= _MOST_WORDS

    @property
    def column(self) -> int:
        """The column of its first category."""
        return next(column for kind, column, _ in self.parts if kind == HASH)


def _combinations(hashed: HashedCategories) -> list[_Combination]:
    parts = [
        *zip(
            hashed.part_kind.tolist(),
            hashed.part_column.tolist(),
            hashed.part_value.tolist(),
            strict=True,
        )
    ]
    found, at = [], 0
    offsets = hashed.part_offset, hashed.key_offset, hashed.statistic_offset
    for (p, q), (k, m), (s, t) in zip(*map(pairwise, offsets), strict=True):
        size = int((m - k + 1) * (t - s))
        bucket = hashed.bucket[at : at + size].reshape(m - k + 1, t - s)
        found.append(_Combination(parts[p:q], hashed.key[k:m], bucket, int(s)))
        at += size
    return found


#: The number of each thing that parts of combinations read.
_Values: TypeAlias = "defaultdict[tuple[int, int, int], int]"


def tables_of(hashed: HashedCategories) -> tuple[tuple[int, ...], list[Array]]:
    """Return the sizes and the arrays by which rows of a forest are made."""
    combinations = _combinations(hashed)
    pairs = [_hashes_of(c) if c.is_alone() else None for c in combinations]
    ranks = _ranks(combinations, pairs)
    dense, others = [], []
    for c, found in zip(combinations, pairs, strict=True):
        if found is not None:
            column = c.column
            places = (len(ranks[column]) + 1) << (len(c.parts) - 1)
            most = max(_FEW_PLACES, _MOST_PLACES * len(c.key))
            if places <= most and places * c.bucket.shape[1] < 2**31:
                dense.append((c, column, found))
                continue
        others.append(c)
    values: _Values = defaultdict()
    values.default_factory = values.__len__
    ranked = sorted({column for _, column, _ in dense})
    for column in ranked:
        _ = values[HASH, column, 1]  # its rank
    tables: list[Array] = []
    arrays = _of_dense(dense, ranks, values, tables)
    arrays |= _of_others(others, values, tables)
    arrays |= _slots([ranks[column] for column in ranked])
    known = np.array([*values], np.int64).reshape(-1, 3)
    known = np.pad(known, ((0, 16), (0, 0)))  # vectors are read of the last ones
    arrays |= dict(zip(list(ARRAYS)[:3], known.T, strict=True))
    # registers are read of the last ones, too
    arrays["table"] = np.concatenate([*tables, np.zeros(256, np.uint8)])
    kept = [np.ascontiguousarray(arrays[name], dtype) for name, dtype in ARRAYS.items()]
    sizes = (
        *(hashed.n_features, hashed.n_columns, len(values), len(ranked)),
        *(len(dense), len(others), hashed.n_features - hashed.n_columns),
    )
    return sizes, kept


def _hashes_of(c: _Combination) -> tuple[Array, Array, Array]:
    """Return the hash and the flags of a combination's keys, and their numbers.

    Flags are bits of a number, in the order of the parts. A key that no hash has with
    any flags is left out.
    """
    n_flags = len(c.parts) - 1
    at = next(i for i, (kind, *_) in enumerate(c.parts) if kind == HASH)
    flags = np.arange(1 << n_flags, dtype=np.uint64)
    total: Array = np.repeat(c.key[:, None], len(flags), axis=1)
    inverse = np.uint64(_INVERSE)
    bits = [*range(n_flags)]
    bits.insert(at, -1)
    with np.errstate(over="ignore"):
        for bit in reversed(bits[at + 1 :]):
            is_set = flags >> np.uint64(bit) & np.uint64(1)
            total = total * inverse - is_set * np.uint64(MULTIPLIER)
        total *= inverse
        before: Array = np.zeros(len(flags), np.uint64)
        for bit in bits[:at]:
            is_set = flags >> np.uint64(bit) & np.uint64(1)
            before = (before + is_set * np.uint64(MULTIPLIER)) * np.uint64(MULTIPLIER)
        hashes = ((total - before) * inverse).view(np.int64)
    key, flag = np.nonzero(hashes == hashes.astype(np.int32))
    return hashes[key, flag].astype(np.int32), flag, key


def _ranks(
    combinations: Sequence[_Combination], pairs: Sequence[Any]
) -> dict[int, NDArray[np.int32]]:
    """Return the hashes that occur in keys, by column, ascending."""
    found: dict[int, list[Array]] = {}
    for c, pair in zip(combinations, pairs, strict=True):
        if pair is not None:
            found.setdefault(c.column, []).append(pair[0])
    return {column: np.unique(np.concatenate(h)) for column, h in found.items()}


def _kind_of(n_ranks: int, n_flags: int) -> int:
    """Return the kind of a table: that of no registers comes last."""
    few = [64 * count > n_ranks for count in REGISTERS]
    if n_flags > REGISTER_FLAGS or not any(few):
        return (REGISTER_FLAGS + 1) * len(REGISTERS)
    return n_flags * len(REGISTERS) + few.index(True)


def _of_dense(
    dense: Sequence[tuple[_Combination, int, Any]],
    ranks: dict[int, NDArray[np.int32]],
    values: _Values,
    tables: list[Array],
) -> dict[str, Any]:
    """Return the arrays of combinations with tables by rank and flags."""
    kinds = [_kind_of(len(ranks[column]), len(c.parts) - 1) for c, column, _ in dense]
    a: dict[str, list[Any]] = {n: [] for n in ARRAYS if n.startswith("dense")}
    n_kinds = _kind_of(0, REGISTER_FLAGS + 1) + 1
    a["dense_kind"] = np.searchsorted(np.sort(kinds), np.arange(n_kinds + 1)).tolist()
    a["dense_part"].append(0)
    size = sum(map(len, tables))
    for i in np.argsort(kinds, kind="stable").tolist():
        c, column, (hashes, flags, keys) = dense[i]
        n_ranks, width = len(ranks[column]) + 1, c.bucket.shape[1]
        others = [part for part in c.parts if part[0] != HASH]
        a["dense_value"] += [values[HASH, column, 1], *map(values.__getitem__, others)]
        a["dense_factor"] += [1, *(n_ranks << bit for bit in range(len(others)))]
        a["dense_part"].append(len(a["dense_value"]))
        a["dense_statistic"].append(c.first)
        a["dense_end"].append(c.first + width)
        a["dense_byte"].append(size)
        a["dense_size"].append(n_ranks << len(others))
        table = np.repeat(c.bucket[-1][:, None], a["dense_size"][-1], axis=1)
        rank = np.searchsorted(ranks[column], hashes) + 1
        table[:, flags * n_ranks + rank] = c.bucket[keys].T
        tables.append(table.ravel())
        size += table.size
    return a


def _of_others(
    others: Sequence[_Combination], values: _Values, tables: list[Array]
) -> dict[str, Any]:
    """Return the arrays of combinations that are looked up by their hashes."""
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
        ends = np.arange((1 << bits) + 1, dtype=np.uint64)
        ends[-1] -= 1
        start = np.searchsorted(c.key, ends << np.uint64(64 - bits))
        start[-1] = len(c.key)
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


def _slots(ranked: Sequence[NDArray[np.int32]]) -> dict[str, Any]:
    """Return tables from hashes to ranks, which are probed from a hash's slot on."""
    first, shift = [], []
    hashes, ranks = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    size = 0
    for known in ranked:
        bits = len(known).bit_length() + 1
        with np.errstate(over="ignore"):
            spread = (known * np.int32(SPREAD)).view(np.uint32)
        slot = (spread >> np.uint32(32 - bits)).astype(np.int64)
        order = np.argsort(slot, kind="stable")
        at = np.arange(len(known))
        place = np.maximum.accumulate(slot[order] - at) + at
        length = max(1 << bits, int(place[-1]) + 1 if len(place) else 0) + 1
        hash_, rank = np.zeros(length, np.int32), np.zeros(length, np.int64)
        hash_[place], rank[place] = known[order], order + 1
        first.append(size)
        shift.append(32 - bits)
        hashes.append(hash_)
        ranks.append(rank)
        size += length
    return {
        "slot_start": first,
        "slot_shift": shift,
        "slot_hash": np.concatenate(hashes),
        "slot_rank": np.concatenate(ranks),
    }
