"""Tests in this folder fail if they make machine code or start processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from skforge import compile_forest
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.target import Target
from skforge.engine.machine import machine_profile
from skforge.runtime.loading import load_object
from tests.exactness.forests import drawn
from tests.guard import CODE, PROCESS, parts_alone


def in_a_thread() -> None:
    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()


def caught() -> None:
    with suppress(BaseException):
        subprocess.run([sys.executable, "--version"])


DOINGS: dict[str, tuple[Callable[[], object], str]] = {
    "subprocess": (lambda: subprocess.run([sys.executable, "--version"]), PROCESS),
    "multiprocessing": (lambda: multiprocessing.Process(target=int).start(), PROCESS),
    "caught": (caught, PROCESS),
    "in a thread": (in_a_thread, PROCESS),
    "an object": (lambda: load_object(b"", ["f"]), CODE),
}


@pytest.mark.parametrize("doing", DOINGS)
def test_what_is_done_is_said(doing: str) -> None:
    do, what = DOINGS[doing]
    with pytest.raises(pytest.fail.Exception) as failed, parts_alone():
        do()
    assert str(failed.value) == (
        f"This test {what}, which tests of core do not. Move it from tests/unit/ to "
        "tests/integration/, which belongs to full, or to tests/outside/."
    )


def test_a_kernel_is_not_compiled() -> None:
    with pytest.raises(pytest.fail.Exception, match=CODE), parts_alone():
        compile_forest(drawn(3, 2)).predict_raw(np.zeros((1, 5)))


def test_schedules_are_chosen_by_a_profile_that_nobody_measures() -> None:
    host = Target.host()
    assert machine_profile(host) == MachineProfile.of(host)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_is_refused() -> None:
    with pytest.raises(pytest.fail.Exception, match=PROCESS), parts_alone():
        os.fork()


# ------------------------------------------------------------ sampling


@pytest.mark.sampled(4)
@pytest.mark.parametrize("letter", "abcd")
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("flag", [False, True])
def test_of_a_product(letter, number, flag):
    assert letter in "abcd" and number and flag in (False, True)


def test_each_value_of_a_product_is_in_the_fast_run(request):
    cases = [
        item.callspec.params
        for item in request.session.items
        if item.nodeid.startswith(f"{request.node.nodeid.partition('::')[0]}::")
        and item.name.startswith("test_of_a_product[")
    ]
    if len(cases) < 4:
        pytest.skip("the cases are not run")
    assert {case["letter"] for case in cases} == {*"abcd"}
    assert {case["number"] for case in cases} == {1, 2, 3}
    assert {case["flag"] for case in cases} == {False, True}
    if "slow" in request.config.option.markexpr:  # else all are there
        assert len(cases) == 4
