"""CatBoost's tests of categories: of single values, and of statistics of combinations.

CatBoost keeps, for each combination of values that it met in training, the counts from
which it computes a number (CTR) and compares it with borders. Only how many borders
that number exceeds can matter, so that this is all that a forest keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Uint64s
from skforge.forest import categories
from skforge.forest.categories import MOST_BORDERS, HashedCategories
from skforge.frontends.arrays import Ints, offsets
from skforge.frontends.catboost import parts
from skforge.frontends.catboost.parts import PartPosition, damaged

#: The kinds of CTR, in the order of their numbers in files.
KINDS = (
    *("Borders", "Buckets", "BinarizedTargetMeanValue", "FloatTargetMeanValue"),
    *("Counter", "FeatureFreq"),
)
#: Those of which a table has sums and counts, and those with a count alone.
MEANS, COUNTS = KINDS[2:4], KINDS[4:]
WIDTHS = {**dict.fromkeys(MEANS, 2), **dict.fromkeys(COUNTS, 1)}
#: Most statistics of a combination that are put together.
_MOST_CHAINED = 16
#: The hash of an empty place of a table.
EMPTY = 2**64 - 1


class CtrTests(NamedTuple):
    """The test of each split: rows up to the threshold go left."""

    column: Ints
    threshold: NDArray[np.float32]
    missing_left: Bools


def tests_of(
    model: parts.CatBoostParts, used: Ints
) -> tuple[CtrTests, HashedCategories | None]:
    n_numbers, known = len(model.border), model.categories
    n_splits = n_numbers + known.n_splits
    split = model.nodes.split
    if len(split) and not 0 <= split.min() <= split.max() < n_splits:
        damaged(f"a split is none of its {n_splits} tests")
    more = n_splits - n_numbers
    tests = CtrTests(
        np.append(model.column, np.zeros(more, np.int64)),
        np.append(model.border, np.zeros(more, np.float32)),
        np.append(model.missing_left, np.ones(more, np.bool_)),
    )
    if not known.columns and not known.ctrs:
        return tests, None
    n_columns = len(model.names)
    is_category = np.zeros(n_columns, np.bool_)
    is_category[np.array(known.columns, np.int64)] = True
    is_used = np.zeros(n_splits, np.bool_)
    is_used[used] = True
    combinations: dict[tuple[PartPosition, ...], list[Statistic]] = {}
    places: list[tuple[tuple[PartPosition, ...], int, Ints, Any]] = []
    first = n_numbers
    for column, hashes in zip(known.columns, known.values, strict=True):
        combination: tuple[PartPosition, ...] = ((categories.HASH, column, 0),)
        for i in np.flatnonzero(is_used[first : first + len(hashes)]):
            columns = combinations.setdefault(combination, [])
            places.append((combination, len(columns), np.array([first + i]), 0))
            key = int(hashes[i]) * categories.MULTIPLIER**2 % 2**64
            buckets = np.array([1, 0], np.uint8)
            columns.append(Statistic(np.array([key], np.uint64), buckets))
        first += len(hashes)
    for ctr in known.ctrs:
        at = first + np.flatnonzero(is_used[first : first + len(ctr.borders)])
        borders, rank = np.unique(ctr.borders[at - first], return_inverse=True)
        columns = combinations.setdefault(ctr.combination, []) if len(at) else []
        for start in range(0, len(borders), MOST_BORDERS):  # a column for each
            here = (rank >= start) & (rank < start + MOST_BORDERS)
            places.append((ctr.combination, len(columns), at[here], rank[here] - start))
            table = known.tables[ctr.table]
            values = _values(ctr, table)
            few = borders[start : start + MOST_BORDERS]
            buckets = np.searchsorted(few, values).astype(np.uint8)
            buckets[np.isnan(values)] = 0  # it exceeds none
            columns.append(Statistic(table.key, buckets))
        first += len(ctr.borders)
    number = {combination: i for i, combination in enumerate(combinations)}
    tables = [_chained(*_merged(columns)) for columns in combinations.values()]
    statistics = offsets([table.code.shape[1] for table in tables])
    for combination, place, at, rank in places:
        chains, first = tables[number[combination]], statistics[number[combination]]
        tests.column[at] = n_columns + first + chains.column[place]
        tests.threshold[at] = chains.last[place][rank]
    elements = [part for combination in combinations for part in combination]
    of_parts = np.array(elements, np.int64).reshape(-1, 3)
    hashed = HashedCategories(
        is_category,
        offsets([*map(len, combinations)]),
        of_parts[:, 0].astype(np.uint8),
        of_parts[:, 1].astype(np.int32),
        of_parts[:, 2].astype(np.int32),
        offsets([len(table.key) for table in tables]),
        np.concatenate([np.zeros(0, np.uint64), *(table.key for table in tables)]),
        statistics,
        np.concatenate([np.zeros(0, np.uint8), *(t.code.ravel() for t in tables)]),
    )
    return tests, hashed


def feature_names(
    names: tuple[str, ...], hashed: HashedCategories | None
) -> tuple[str, ...] | None:
    if hashed is None or not all(names):
        return names if all(names) else None
    of = hashed.columns_of[len(names) :]
    return *names, *(
        f"{{{', '.join(names[i] for i in columns)}}} {number}"
        for number, columns in enumerate(of)
    )


class Statistic(NamedTuple):
    """How many borders hashes exceed, and all other hashes, last."""

    key: Uint64s  # (n_keys,)
    bucket: NDArray[np.uint8]  # (n_keys + 1,)


def _merged(statistics: list[Statistic]) -> tuple[Uint64s, NDArray[np.uint8]]:
    """Return the hashes of a combination, and its statistics for each of them.

    Those for all other hashes follow; hashes with the same ones are left out.
    """
    keys = statistics[0].key  # most have one table
    if any(statistic.key is not keys for statistic in statistics):
        keys = np.unique(np.concatenate([statistic.key for statistic in statistics]))
    buckets = np.empty((len(keys) + 1, len(statistics)), np.uint8)
    for i, (key, bucket) in enumerate(statistics):
        buckets[:, i] = bucket[-1]
        place = slice(-1) if key is keys else np.searchsorted(keys, key)
        buckets[place, i] = bucket[:-1]
    differs = (buckets[:-1] != buckets[-1]).any(axis=1)
    return keys[differs], buckets[np.append(differs, True)]


class Chains(NamedTuple):
    key: Uint64s
    code: NDArray[np.uint8]  # (n_keys + 1, n_columns)
    column: list[int]  # of each statistic
    last: list[Ints]  # the last code of each number of borders, by statistic


def _chained(key: Uint64s, bucket: NDArray[np.uint8]) -> Chains:
    """Put statistics that rise together into one column.

    Their joint values are in an order that is one for each, so that every test is a
    threshold on their rank; forests of up to 256 columns have faster kernels.
    """
    if (count := bucket.shape[1]) == 1:
        return Chains(key, bucket, [0], [np.arange(MOST_BORDERS + 1)])
    some, row = _distinct(bucket)
    chains: list[list[int]] = []
    for j in range(count):
        for chain in chains if count <= _MOST_CHAINED else ():
            found, _ = _distinct(some[:, [*chain, j]])
            rises = (found[1:] >= found[:-1]).all()
            if rises and len(found) <= MOST_BORDERS + 1:
                chain.append(j)
                break
        else:
            chains.append([j])
    code = np.empty((len(bucket), len(chains)), np.uint8)
    column, last = [0] * count, [np.zeros(0, np.int64)] * count
    for number, chain in enumerate(chains):
        found, rank = _distinct(some[:, chain])
        code[:, number] = rank[row]
        for j, values in zip(chain, found.T, strict=True):
            column[j] = number
            below = np.searchsorted(values, np.arange(MOST_BORDERS + 1), "right")
            last[j] = below - 1
    return Chains(key, code, column, last)


def _distinct(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Ints]:
    place = np.zeros(len(rows), np.int64)
    for column in rows.T:  # ``np.unique`` of rows compares them one by one
        place = place * 256 + column
        if (most := int(place.max())) > 2**16 + 16 * len(rows):
            place = np.unique(place, return_inverse=True)[1]
        else:
            is_there = np.zeros(most + 1, np.bool_)
            is_there[place] = True
            place = (np.cumsum(is_there) - 1)[place]
    found = np.empty((int(place.max()) + 1, rows.shape[1]), np.uint8)
    found[place] = rows
    return found, place


def _values(ctr: parts.Ctr, table: parts.CtrTable) -> NDArray[np.float32]:
    counts, one = table.counts, np.float32
    whole = np.zeros(len(counts) + 1, np.float32)
    part = whole.copy()
    if ctr.kind in COUNTS:
        part[:-1], whole[:] = counts[:, 0], table.denominator
    elif ctr.kind in MEANS:
        part[:-1], whole[:-1] = counts.T
    else:
        first = ctr.target_border + (ctr.kind == "Borders")
        last = counts.shape[1] if ctr.kind == "Borders" else first + 1
        part[:-1] = counts[:, first:last].sum(axis=1)
        whole[:-1] = counts.sum(axis=1)
    with np.errstate(all="ignore"):
        value = (part + one(ctr.prior[0])) / (whole + one(ctr.prior[1]))
        return (value + one(ctr.shift)) * one(ctr.scale)


def above(column: int, border: float, nan_is: bool) -> PartPosition:
    kind = categories.ABOVE_OR_NAN if nan_is else categories.ABOVE
    return kind, column, int(np.float32(border).view(np.int32))


def check(known: parts.Categories, kinds: Sequence[str]) -> None:
    """Raise unless all CTRs have their tables, and parts of their columns' kinds."""
    for ctr in known.ctrs:
        if (table := known.tables.get(ctr.table)) is None:
            damaged(f"the table of a {ctr.kind} of its categories is missing")
        n_counts = table.counts.shape[1]
        if n_counts != WIDTHS.get(ctr.kind, n_counts) or not n_counts:
            damaged(f"a table of {ctr.kind} has {n_counts} numbers for a combination")
        if ctr.kind in KINDS[:2] and not 0 <= ctr.target_border < n_counts:
            damaged(f"a {ctr.kind} is of class {ctr.target_border} of {n_counts}")
        parts.check_borders(np.zeros(len(ctr.borders)), ctr.borders)
        for kind, column, _ in ctr.combination:
            is_hash = kind in (categories.HASH, categories.EQUAL)
            fits = 0 <= column < len(kinds)
            if not fits or (kinds[column] == "categorical") != is_hash:
                damaged("a part of a combination is none of its columns")


def table_of(key: Any, counts: Array, denominator: int) -> parts.CtrTable:
    order = np.argsort(key)
    key = key[order]
    if (key[1:] == key[:-1]).any():
        damaged("a table of its categories has a combination twice")
    return parts.CtrTable(key, counts[order], denominator)
