"""Tests of ``unit/test_sliced_trees.py`` that compile or start processes."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import WIDE
from skforge.compiler.target import Target
from tests.exactness.checks import emitted
from tests.exactness.forests import drawn
from tests.exactness.sliced import counted, sliced
from tests.unit.test_sliced_trees import LEVELS, V4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("depth", [4, 6, 8])
@pytest.mark.parametrize("block", [64, 512])
def test_a_fold_is_one_instruction_a_node_on_avx512(block: int, depth: int) -> None:
    shallow, _ = emitted(counted((5,), depth=3, n_trees=2), sliced(block), V4)
    deep, _ = emitted(counted((5,), depth=depth, n_trees=2), sliced(block), V4)
    # Joining the bytes of leaf numbers takes others, of three lines each: one per two.
    joins = (depth - 1) // 2 - (3 - 1) // 2
    more = deep.count("vpternlog") - shallow.count("vpternlog")
    nodes = (1 << depth) - depth - (1 << 3) + 3
    assert nodes <= more <= nodes + joins


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [5, 8])
def test_nothing_is_gathered_and_nothing_called(level: str, depth: int) -> None:
    made = counted((3, 20, 200), depth=depth, n_trees=4)
    text, _ = emitted(made, sliced(), Target.x86_64(level))
    assert "gather" not in text
    # the parallel loop, its body, and scratch
    allowed = r"\*\S*\(%rsp\)|predict\.(p1|take0|give0|empty0)|skforge\.home|"
    allowed += "(aligned_alloc|free)@PLT"
    called = re.findall(r"\tcall\w*\s+(\S+)", text)
    assert [name for name in called if not re.fullmatch(allowed, name)] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LEVELS)
def test_code_does_not_grow_with_the_predicates(level: str) -> None:
    target = Target.x86_64(level)

    def lines(*counts: int) -> int:
        used = [10 * k for k in range(len(counts))]  # in several tiles of columns
        made = counted(counts, used=used, n_features=80)
        return len(emitted(made, sliced(), target)[0].splitlines())

    # the same kinds of search, in one vector register or two
    assert abs(lines(2, 155, 248, 155) - lines(9, 248, 155, 496, 248, 3, 7)) <= 4


def test_a_search_permutes_registers_on_avx512() -> None:
    text, _ = emitted(counted((200,)), sliced(), V4)
    together = Registers.of(V4, np.dtype("f4")).lockstep
    # levels 1 to 4 fit one register, 5 two, 6 four, 7 eight
    assert len(re.findall(r"\tvperm(?:d|ps)\s", text)) == 4 * together
    assert len(re.findall(r"\tvperm[it]2ps\s", text)) == (1 + 2 + 4) * together


@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_several_lines_are_fetched_ahead(level: str) -> None:
    target = Target.x86_64(level)
    for n_features in (65, 501):
        text = emitted(drawn(9, 6, n_features=n_features), sliced(), target)[0]
        # a group of rows, in code for whole groups and for the last rows
        lanes = target.vector_bits // 32
        wide = n_features > WIDE
        level = 1 if wide and lanes == 16 else 0  # to L2, as rows of a run fill L1
        expected = Counter({str(level): 2 * lanes})
        if not wide:
            expected["1"] += 1  # of the next block's first lines
        assert Counter(re.findall(r"\tprefetcht(\d)", text)) == expected
    narrow = drawn(9, 6, n_features=64)
    assert "prefetcht0" not in emitted(narrow, sliced(), target)[0]
