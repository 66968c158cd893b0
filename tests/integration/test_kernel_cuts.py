"""Kernels that stop early, by which a profile tells what each part takes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.target import Target
from skforge.engine.kernels import KernelCache
from skforge.schedule import families
from tests.exactness.forests import forest, rows_for

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from cases import Case
from kernel_cuts import Cuts
from where_time_goes import _kernel, profile, to_markdown

HOST = Target.host()
BLOCKS = families.bitsliced_schedule(128)
BLOCK_PARTS = ["columns", "search", "lines", "fold", "index", "look-up", "output"]
WALK_PARTS = ["walk", "look-up"]

TILE_PARTS = ["top", "tiles", "sums", "look-up", "output"]

#: The parts of every kind of schedule that defaults choose.
KINDS = {
    "bitsliced": (BLOCKS, BLOCK_PARTS),
    "lanes": (families.lanes_schedule(), ["codes", "tests", "sums", "look-up"]),
    "tiles": (families.tiled_schedule(256, 7), ["codes", *TILE_PARTS]),
    "values": (
        families.tiled_schedule(256, 7, codes=False),
        ["columns", *TILE_PARTS[1:]],
    ),
    "tile-row": (
        families.tiled_row_schedule(7),
        ["codes", "top", "tiles", "leaves", "sums", "look-up"],
    ),
    "pieces": (
        families.pieces_schedule(512),
        ["codes", "columns", "top", "buckets", "pieces", *TILE_PARTS[2:]],
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["full", pytest.param("deep", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_kernels_of_every_kind_run(kind: str, name: str) -> None:
    schedule, parts = KINDS[kind]
    made = forest(name)
    whole = KernelCache(made, HOST, "exact").lowered(schedule, "accumulator")
    rows = rows_for(name, 300)
    result = np.empty((300, made.n_outputs), made.accumulator_dtype)
    cuts = Cuts(whole.kernel.function)
    assert cuts.parts == parts
    prefixes = cuts.prefixes()
    assert prefixes[parts[-1]] == whole.kernel.function
    for function in [*prefixes.values(), *cuts.without_each().values()]:
        verify_lir(function)
        _kernel(whole, HOST, function, 300)(rows, result, 1)


@pytest.mark.parametrize(("walk", "size"), [(False, 130), (True, 1)])
def test_a_profile_has_a_line_for_each_part(walk: bool, size: int) -> None:
    made = forest("full")
    case = Case("full", None, made, rows_for("full", 200), "drawn")
    found = profile(case, size, HOST, walk=walk, seconds=0.01)
    names = [part.name for part in found.parts]
    assert names[-1] == "call"
    assert names[:-1] in [WALK_PARTS, *(parts for _, parts in KINDS.values())]
    assert any(part.floor_ns_row for part in found.parts)
    *parts, call = found.parts
    assert call.bytes_row is call.arrays_kib is None
    read = made.n_features * made.threshold.itemsize
    assert parts[0].bytes_row >= (0 if walk else read)  # all columns of a row
    assert all(part.bytes_row > 0 < part.arrays_kib for part in parts)
    assert to_markdown(found).count("\n| ") == len(names) + 1
