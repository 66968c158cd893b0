"""The bit-sliced schedule gives the source's own bits, whatever the forest."""

from __future__ import annotations

import pytest

from skforge.modules.compiled import compile_forest
from tests.exactness.checks import assert_same_bits, cpu, raw_of
from tests.exactness.sliced import BATCHES, MAKERS, case, sliced

BLOCKS = (64, 128, 256, 512, 1024)


def _check(name: str, block: int, level: str, batches: tuple[int, ...]) -> None:
    made, rows, raw = case(name)
    module = compile_forest(made, sliced(block), cpu(level))
    for n in batches:  # on 1, 2, 3 or 8 threads
        got = raw_of(module, rows[:n], n_jobs=(3, 2, 1, 8)[n // 512 % 4])
        assert_same_bits(got, raw[:n], (name, block, level, n))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MAKERS)
def test_every_batch_size(name: str) -> None:
    # the default's block, and each of the others for every tenth forest
    at = list(MAKERS).index(name)
    for block in {512, BLOCKS[at // 2 % len(BLOCKS)] if at % 2 else 512}:
        _check(name, block, "host", BATCHES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("block", [2048, 8192])
@pytest.mark.parametrize("name", ["counts", "lists and folds", "501 features"])
def test_blocks_larger_than_a_part_of_the_input_stage(name: str, block: int) -> None:
    _check(name, block, "host", (1, 1025, 1537))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", MAKERS)
def test_every_target(name: str, block: int, level: str) -> None:
    _check(name, block, level, (1, 65, 513, 1537))
