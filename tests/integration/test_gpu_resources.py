"""Tests of ``unit/test_gpu_resources.py`` that compile or start processes."""

from __future__ import annotations

import pytest

from benchmarks.gpu import gpu_sass
from benchmarks.gpu.gpu_sass import loop_instructions
from tests.gpu_binary import compile_text
from tests.gpu_kernels import needs, plan_of, walk_function


def test_a_walk_step_is_some_twenty_instructions():
    needs("cuda")
    if gpu_sass.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    binary = compile_text(plan_of(walk_function()).source, "sm_90", "cuda")
    loops = loop_instructions(binary.code)
    assert len(loops["predict_0"]) == 2 and loops["predict_1"] == []
    assert all(10 <= count <= 26 for count in loops["predict_0"])
