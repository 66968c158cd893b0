"""Tests of ``unit/test_target.py`` that compile or start processes."""

from __future__ import annotations

import os

import pytest

from tests.programs import run_python


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="no affinity masks on this system"
)
def test_host_counts_only_the_cores_it_may_use():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from skforge import Target; print(Target.host().n_cores)"
    )
    run = run_python(code)
    assert run.strip() == "1"
