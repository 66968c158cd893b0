"""LIR after lowering has the papers' operations; the passes leave their code."""

from __future__ import annotations

import re

import pytest

from skforge.compiler.driver import Lowered, build_hir, lower
from skforge.compiler.target import Target
from skforge.schedule.schedule import Schedule
from tests import toy_representation
from tests.exactness.forests import forest

S = Schedule()
FLAGS = re.compile("load_flag_.*")
NAMED = re.compile(
    r"\b(get_root|load_\w+|is_leaf|move_to_child|get_leaf_value)\(([^)]*)\)"
)


def lowered(schedule: Schedule, target: str = "v3") -> Lowered:
    on_gpu = target.startswith("sm_")
    machine = Target.cuda(target) if on_gpu else Target.x86_64(target)
    hir = build_hir(
        forest("scalar"), schedule, "exact", kind="gpu" if on_gpu else "cpu"
    )
    return lower(hir, machine)


def operations(found: Lowered) -> list[str]:
    """Return the operations of a walk but for the flags of its nodes."""
    names = [name for name, _ in NAMED.findall(found.text("lower-to-lir"))]
    return [name for name in names if not FLAGS.fullmatch(name)]


HOP = ["load_feature_index", "load_threshold", "move_to_child"]
TILE_HOP = ["load_feature_index", "load_threshold", "load_tile_shape", "move_to_child"]
CASES = {
    # A leaf's exit leads back to it, so the loop needs no is_leaf.
    "sparse": (S, ["get_root", "load_tile", *HOP, "get_leaf_value"]),
    "unrolled": (S.unroll_walk("tree", 2),
        ["get_root", *["load_tile", *HOP] * 2, "load_tile", *HOP, "get_leaf_value"]),
    "array": (S.represent("array"),
        ["get_root", "load_tile", *HOP, "is_leaf", "get_leaf_value"]),
    "tiles of nodes": (S.tile_nodes(3),
        ["get_root", "load_tile", "is_leaf", *TILE_HOP, "get_leaf_value"]),
    "a plugin": (S.represent(toy_representation.Toy.name),
        ["get_root", "load_tile", *HOP, "is_leaf", "get_leaf_value"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_walk_has_the_operations_of_the_papers(case: str) -> None:
    schedule, expected = CASES[case]
    assert operations(lowered(schedule)) == expected


def test_a_gpu_asks_is_leaf_before_each_hop() -> None:
    threads = S.gpu_dimension("batch", "grid.x")
    found = operations(lowered(threads, target="sm_90"))
    assert found == ["get_root", "load_tile", "is_leaf", *HOP, "get_leaf_value"]


def test_flags_of_nodes_are_named() -> None:
    assert " = load_flag_default_left(" in lowered(S).text("lower-to-lir")


def test_operations_name_the_buffers_that_they_read() -> None:
    text = lowered(S.represent(toy_representation.Toy.name)).text("lower-to-lir")
    read = {name: args.split(", ")[0] for name, args in NAMED.findall(text)}
    assert read["load_threshold"] == "@toy_thresholds"
    assert read["load_feature_index"] == "@toy_features"
    assert read["is_leaf"] == "@toy_is_leaf"
    assert read["get_leaf_value"] == "@leaf_values"
