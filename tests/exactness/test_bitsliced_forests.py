"""The bit-sliced schedule gives the source's own bits, whatever the forest."""

from __future__ import annotations

import pytest

from skforge.modules.compiled import compile_forest
from tests.exactness.checks import assert_same_bits, levels, raw_of
from tests.exactness.sliced import BATCHES, MAKERS, case, sliced

BLOCKS = (64, 128, 256, 512, 1024)
LEVELS = ("v2", "v3", "v4", "cpu")
#: Every target meets these at every block; the others take turns.
EVERYWHERE = ("counts", "double extremes", "categories, cut", "depths 0 to 8")


def _check(name: str, block: int, target: str, batches: tuple[int, ...]) -> None:
    if target != "cpu" and target not in levels():
        pytest.skip(f"this machine does not run x86-64-{target}")
    made, rows, raw = case(name)
    module = compile_forest(made, sliced(block), levels().get(target, "cpu"))
    for n in batches:
        assert_same_bits(raw_of(module, rows[:n]), raw[:n], (name, block, target, n))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MAKERS)
def test_every_batch_size(name: str) -> None:
    # the default's block, and each of the others for every tenth forest
    at = list(MAKERS).index(name)
    for block in {512, BLOCKS[at // 2 % len(BLOCKS)] if at % 2 else 512}:
        _check(name, block, "cpu", BATCHES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("block", [2048, 8192])
@pytest.mark.parametrize("name", ["counts", "lists and folds", "501 features"])
def test_blocks_larger_than_a_part_of_the_input_stage(name: str, block: int) -> None:
    _check(name, block, "cpu", (1, 1025, 1537))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_target(name: str, level: str) -> None:
    block = BLOCKS[LEVELS.index(level) + 1]
    _check(name, block, level, (1, 65, 513, 1537))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
def test_forests_take_turns_at_targets(level: str, part: int) -> None:
    for k, name in enumerate([n for n in MAKERS if n not in EVERYWHERE]):
        if k % 4 == part and (k // 4 + int(level[1])) % 3 == 0:
            _check(name, BLOCKS[k % len(BLOCKS)], level, (65, 1000))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_forest_at_every_target_and_block(name: str, level: str) -> None:
    for block in BLOCKS:
        _check(name, block, level, (1, 513, 1537))
