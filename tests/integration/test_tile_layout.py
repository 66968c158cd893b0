"""Tests of ``unit/test_tile_layout.py`` that compile or start processes."""

from __future__ import annotations

import re

import pytest

from skforge.compiler.driver import build_hir, lower
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import emit_assembly
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest

# ------------------------------------------------------------ machine code


def loops_with(text: str, instruction: str) -> list[str]:
    """Return the innermost loops of an assembly that have an instruction."""
    found = []
    for block in text.split("\n.LBB")[1:]:
        label = ".LBB" + block.split(":")[0]
        if instruction in block and f"\t{label}\n" in f"{block}\n":
            found.append(block)
    return found


def test_arm_looks_codes_up_in_registers() -> None:
    target = Target.aarch64()
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .quantize("b0")
        .vectorize("b1")
        .tile_nodes(15, "complete")
        .represent("tiles")
    )
    hir = build_hir(forest("deep"), schedule, "exact")
    text = emit_assembly(lower(hir, target).kernel.function, target)
    # each register of eight codes out of the 32 of a row
    assert text.count("tbl\tv") >= 4 * (4 + 4 + 2)


@pytest.mark.parametrize("nodes", [7, 15])
def test_inner_loops_neither_gather_nor_spill(nodes: int) -> None:
    target = Target.x86_64("v4")
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", 4096)  # its scratch is not on the stack
        .reorder("b0", "tree", "b1")
        .quantize("b0")
        .vectorize("b1")
        .tile_nodes(nodes, "complete")
        .represent("tiles")
    )
    hir = build_hir(forest("deep"), schedule, "exact")
    text = emit_assembly(lower(hir, target).kernel.function, target)
    compares = [
        loop for loop in loops_with(text, "vpcmpgtw") if "vpcompressd" not in loop
    ]
    decodes = loops_with(text, "vpcompressd")
    assert len(compares) >= 2 and len(decodes) >= 2
    for loop in compares:
        permutes = ("vpermw\t", "vpermi2w\t", "vpermt2w\t")
        assert sum(loop.count(name) for name in permutes) in (4, 8)
    for loop in [*compares, *decodes]:
        assert "gather" not in loop
        assert not re.findall(r"\(%rsp\), %zmm|%zmm\d+, -?\d*\(%rsp\)", loop)
    for loop in decodes:
        assert loop.count("vpcompressd") == 2
        assert "scatter" not in loop
