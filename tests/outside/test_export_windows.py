"""Exports for Windows, made elsewhere; Wine runs them where it has a prefix."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

import skforge
from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.target import Target
from skforge.exceptions import TargetError
from skforge.exporters.contents import Library
from skforge.exporters.library import export_object, outputs_of
from skforge.exporters.llvm_wrapper import python_code
from tests.export_tools import small_forest

MINGW = shutil.which("x86_64-w64-mingw32-gcc")
#: A prefix is asked for, as it takes Wine minutes to make one.
WINE = shutil.which("wine") if "WINEPREFIX" in os.environ else None

pytestmark = pytest.mark.skipif(
    Target.host().arch != "x86_64", reason="x86-64 is exported on x86-64 alone"
)
needs_mingw = pytest.mark.skipif(MINGW is None, reason="there is no MinGW")


def windows(system: str = "msvc") -> Target:
    return replace(Target.x86_64("v2"), triple=f"x86_64-pc-windows-{system}")


def symbols(binary: bytes) -> tuple[set[str], set[str]]:
    """Return the names that a COFF object needs, and those that it exports."""
    machine, _, _, at, count = struct.unpack_from("<HHIII", binary)
    assert machine == 0x8664
    end = at + 18 * count
    needed, k = set(), 0
    while k < count:
        name, _, section, _, kind, further = struct.unpack_from(
            "<8sIhHBB", binary, at + 18 * k
        )
        if section == 0 and kind == 2:
            zero, place = struct.unpack("<II", name)
            long = binary[end + place :].partition(b"\0")[0]
            needed.add((name.rstrip(b"\0") if zero else long).decode())
        k += 1 + further
    words = binary.replace(b"-export:", b" /EXPORT:").split(b" /EXPORT:")[1:]
    return needed, {w.partition(b" ")[0].partition(b"\0")[0].decode() for w in words}


@pytest.mark.parametrize("system", ["msvc", "gnu", "msvc-elf"])
def test_objects_are_coff_and_need_the_c_library_alone(
    system: str, tmp_path: Path
) -> None:
    made = skforge.export(
        small_forest(), tmp_path / "tiny", target=windows(system), batch_sizes=[1]
    )
    needed, exported = symbols((made / "tiny.o").read_bytes())
    heap = {"__imp__aligned_malloc", "__imp__aligned_free", "__imp_memset"}
    stack = {"gnu": {"___chkstk_ms"}}.get(system, {"_fltused", "__chkstk"})
    assert heap <= needed <= heap | stack
    assert {"tiny_open", "tiny_close", "tiny_predict_f64"} <= exported
    assert all(name.startswith("tiny_") for name in exported)
    facts = json.loads((made / "tiny.json").read_text())
    assert facts["verified_here"]


def test_other_cpus_are_refused(tmp_path: Path) -> None:
    arm = replace(Target.aarch64(), triple="aarch64-pc-windows-msvc")
    with pytest.raises(TargetError, match="for Windows are of x86-64"):
        skforge.export(small_forest(), tmp_path / "tiny", target=arm)


@needs_mingw
def test_a_program_finds_every_bit_of_the_csv(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(400, 4))
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0) + 0
    options: dict[str, Any] = {"n_estimators": 9, "random_state": 0}
    for model in (GradientBoostingClassifier, RandomForestClassifier):
        forest = skforge.load_forest(model(**options).fit(X, y))
        made = skforge.export(
            forest, tmp_path / "price", "shared", windows(), batch_sizes=[64]
        )
        for command in (
            [MINGW, "-o", "example.exe", "example.c", "libprice.dll", "-lm"],
            [WINE, "example.exe", "--check"],
        ):
            if command[0] is None:
                pytest.skip("there is no Wine with a prefix")
            with (made / "check.csv").open() as rows:
                said = subprocess.run(
                    command,
                    cwd=made,
                    stdin=rows,
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=True,
                )
        assert said.stdout.strip() == "0 of 100 rows differ"
        shutil.rmtree(made)


@needs_mingw
def test_wheels_have_a_library(tmp_path: Path) -> None:
    made = skforge.export(
        small_forest(), tmp_path / "tiny", "wheel", windows(), batch_sizes=[1]
    )
    with zipfile.ZipFile(made / "tiny-1.0.0-py3-none-win_amd64.whl") as archive:
        binary = archive.read("tiny/libtiny.dll")
    assert binary[:2] == b"MZ"
    assert b"tiny_python_predict_raw" in binary
    assert b"ucrtbase.dll" in binary
    assert b"msvcrt" not in binary


@pytest.mark.parametrize(("system", "number"), [("linux-gnu", 7), ("windows-gnu", 9)])
def test_numpys_number_of_int64_is_the_system_s(system: str, number: int) -> None:
    # A long has 32 bits on Windows: its array would be half as long.
    X = np.random.default_rng(0).normal(size=(60, 3))
    forest = skforge.load_forest(RandomForestClassifier(3).fit(X, X[:, 0] > 0))
    target = replace(Target.x86_64("v2"), triple=f"x86_64-pc-{system}")
    whole = Library("tiny", forest, *outputs_of(forest), apply=False)
    library, _ = export_object(whole, [target], [None], [1])
    texts = [
        emit_llvm(part, target)
        for part in python_code(library)
        if not isinstance(part, str) and part.name == "tiny_python_predict_class"
    ]
    assert library.results["predict_class"][0] == "int64"
    assert f"(i32 {number})" in texts[0]
