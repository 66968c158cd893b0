"""The bit-sliced schedule stays within rows, result, model arrays and scratch."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from skforge.compiler.target import Target
from skforge.modules.compiled import compile_forest
from tests.exactness.checks import assert_same_bits, interpreted, raw_of
from tests.exactness.sliced import MAKERS, case, sliced

ROOT = Path(__file__).parents[2]
TARGETS = {
    "v2": Target.x86_64("v2"),
    "v3": Target.x86_64("v3"),
    "v4": Target.x86_64("v4"),
    "aarch64": Target.aarch64(),
    "cpu": Target.host(),
}
#: Rows of many features take long.
NAMES = [
    name
    if "features" not in name or "1" in name[:2]
    else pytest.param(name, marks=pytest.mark.slow)
    for name in MAKERS
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_interpreted(name: str, target: str) -> None:
    """The interpreter stops at any access out of bounds of any buffer."""
    made, rows, raw = case(name)
    # the caller makes the source's marker of missing values NaN
    rows = np.where(rows == made.input_dtype.type(made.missing_value), np.nan, rows)
    at = list(MAKERS).index(name)
    for n, block in ((1, 64), (64 + at % 7, 64), (130, 128)):
        got = interpreted(
            made,
            sliced(block),
            rows[:n],
            target=TARGETS[target],
            extra_stride=n % 3,
            shuffle=n,
        )
        assert_same_bits(got, raw[:n], (name, target, n))


def _guarded(argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.exactness.guarded_rows", argument],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages by mprotect")
def test_a_guarded_page_stops_the_program() -> None:
    done = _guarded("touch")
    assert done.stdout == "reading past the end\n"
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages by mprotect")
@pytest.mark.parametrize(
    "levels", ["turns", pytest.param("all levels", marks=pytest.mark.slow)]
)
def test_rows_between_guarded_pages(levels: str) -> None:
    done = _guarded(levels)
    last = (done.stdout.splitlines() or [""])[-1]
    assert (last, done.returncode) == ("all read within bounds", 0), done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["lt", "double", "501 features", "categories"])
def test_rows_however_they_lie(name: str) -> None:
    made, rows, raw = case(name)
    module = compile_forest(made, sliced(64))
    n = 150
    wide = np.full((n, rows.shape[1] + 5), np.nan, rows.dtype)
    wide[:, 2:-3] = rows[:n]
    ways = {
        "stride": wide[:, 2:-3],
        "backwards": np.ascontiguousarray(rows[:n][::-1])[::-1],
        "every second": np.repeat(rows[:n], 2, axis=0)[::2],
        "the same row": np.broadcast_to(rows[:1], rows[:n].shape),
        "Fortran": np.asfortranarray(rows[:n]),
        "one row": rows[:1],
        "unaligned": _unaligned(rows[:n]),
        "read only": _read_only(rows[:n]),
    }
    for way, x in ways.items():
        wanted = raw[: len(x)] if way != "the same row" else np.repeat(raw[:1], n, 0)
        before = x.tobytes()
        assert_same_bits(raw_of(module, x), wanted, (name, way))
        assert x.tobytes() == before


def _unaligned(rows: np.ndarray) -> np.ndarray:
    raw = np.empty(rows.nbytes + 1, np.uint8)[1:]
    made = raw.view(rows.dtype).reshape(rows.shape)
    made[:] = rows
    return made


def _read_only(rows: np.ndarray) -> np.ndarray:
    made = rows.copy()
    made.flags.writeable = False
    return made


# ------------------------------------------------------------ scratch


@pytest.mark.parametrize(
    "name", ["counts", "vector 10", "2000 features", "lists of 31"]
)
def test_scratch_is_allocated_once_a_thread_and_call(name: str) -> None:
    made, _, _ = case(name)
    module = compile_forest(made, sliced(512))
    text = module.inspect("llvm")
    taken = given = 0
    for function in re.split(r"^(?=define )", text, flags=re.MULTILINE)[1:]:
        if not re.match(r"define [^@]*@\"?predict(\.p\d+)?\"?\(", function):
            continue  # what takes and gives scratch from and to a pool
        for block in re.split(r"^(?=\S+:)", function, flags=re.MULTILINE)[1:]:
            found = len(re.findall(r"call ptr @(aligned_alloc|predict\.take)", block))
            taken += found
            given += len(re.findall(r"call void @(free|predict\.give)", block))
            # only in the entry block, before any branch
            assert not found or block.startswith(('"$entry":', "entry:")), block
    assert taken == given >= 1
    assert re.findall(r"alloca \[.*?\], i64 %", text) == []


def test_scratch_does_not_grow_with_the_batch() -> None:
    for name in ("lt", "vector 10", "lists and folds"):
        module = compile_forest(case(name)[0], sliced(512))
        module.compile_all()
        (kernel,) = module.compiler._kernels.values()
        assert kernel.most_rows is None
