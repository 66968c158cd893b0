"""The schedules that are compared: ways to deal rows and trees out, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from skforge.forest.forest import Forest
from skforge.schedule.families import (
    WalkKind,
    rows_and_trees,
    rows_by_threads,
    trees_by_blocks,
    trees_by_threads,
)
from skforge.schedule.schedule import Schedule

#: Trees deeper than this are not padded, nor stored as heaps.
PADDED_DEPTH = 10
LANES = PARTS_ROWS = 32
#: Bytes of rows from which a block takes fewer than a warp's.
WIDE_BYTES = 100 << 10


@dataclass(frozen=True, slots=True)
class Design:
    """A schedule, with its name in tables."""

    name: str
    schedule: Schedule


def designs(forest: Forest) -> Iterator[Design]:
    """Yield the designs that suit a forest's depth."""
    deep = int(forest.tree_depths().max(initial=0))
    hops = deep if deep <= PADDED_DEPTH else 0
    plain = WalkKind("memory", in_flight=1)
    yield _rows("a row a thread, nothing cached", 128, plain)
    yield _rows("rows in shared memory", 128, WalkKind(in_flight=1))
    yield _rows("4 trees in flight", 128, WalkKind())
    yield _rows("8 trees in flight", 128, WalkKind(in_flight=8))
    if hops:
        yield _rows("4 trees in flight, padded", 128, WalkKind(padded=hops))
        yield _rows(
            "8 trees in flight, padded", 128, WalkKind(in_flight=8, padded=hops)
        )
        heap = WalkKind(representation="array", padded=hops)
        yield _rows("array, 4 trees in flight, padded", 128, heap)
        yield _rows("codes, array, padded", 128, WalkKind("codes", "array", 4, hops))
        nodes = 4 << (hops + 1)
        for tile in (4, 8, 16):
            if nodes * tile <= 100 << 10:
                walk = WalkKind("codes", "array", 4, hops)
                yield _rows(f"codes, array, {tile} trees in shared", 256, walk, tile)
        tile = max(1, min(16, (64 << 10) // (2 * nodes)))
        if tile >= 4:
            yield _rows(f"values, array, {tile} trees in shared", 256, heap, tile)
    yield _rows("codes, 4 trees in flight", 128, WalkKind("codes"))
    yield _rows("codes, 32 rows", 32, WalkKind("codes"))
    mixed = WalkKind(padded=hops) if hops else WalkKind()
    for rows, parts in ((32, 4), (32, 16), (16, 32), (8, 64)):
        if (rows < LANES) != (4 * LANES * forest.n_features > WIDE_BYTES):
            continue  # fewer rows are for wide ones
        schedule = rows_and_trees(rows, parts, mixed)
        name = f"{rows} rows by {parts} parts of trees"
        yield Design(name, schedule)
    if PARTS_ROWS * 4 * forest.n_features <= WIDE_BYTES:
        schedule = rows_and_trees(PARTS_ROWS, 16, mixed, shared_sums=False)
        name = "32 rows by 16 parts of trees, sums in memory"
        yield Design(name, schedule)
    some = WalkKind(in_flight=2)
    several = [(8, 32), (2, 128), (1, 256)]
    if forest.n_trees > several[-1][1]:
        several.append((1, 1024))
    for rows, threads in several:
        schedule = trees_by_threads(rows, threads, some)
        name = f"{rows} rows, trees by {threads} threads"
        yield Design(name, schedule)
    if hops:
        lanes = WalkKind(representation="reorg", in_flight=2, padded=hops)
        schedule = trees_by_threads(8, 32, lanes)
        yield Design("8 rows, 32 threads, reorg", schedule)
    one = WalkKind(in_flight=1)
    schedule = trees_by_blocks(1, 32, 8, one)
    yield Design("a row by 8 blocks", schedule)


def _rows(name: str, rows: int, walk: WalkKind, tile: int = 0) -> Design:
    return Design(name, rows_by_threads(rows, walk, tile))


#: What is measured where time is short.
FEW = (
    "4 trees in flight, padded",
    "codes, array, 16 trees in shared",
    "32 rows by 16 parts of trees",
    "2 rows, trees by 128 threads",
)

#: Designs that differ in one thing: what it is, without it, with it.
ABLATION = (
    ("cache of rows", "a row a thread, nothing cached", "rows in shared memory"),
    ("4 trees in flight", "rows in shared memory", "4 trees in flight"),
    ("padded walks", "4 trees in flight", "4 trees in flight, padded"),
    (
        "array for sparse",
        "4 trees in flight, padded",
        "array, 4 trees in flight, padded",
    ),
    ("reorg for sparse", "8 rows, trees by 32 threads", "8 rows, 32 threads, reorg"),
    ("cache of trees", "codes, array, padded", "codes, array, 16 trees in shared"),
    (
        "shared_reduce",
        "32 rows by 16 parts of trees, sums in memory",
        "32 rows by 16 parts of trees",
    ),
)
