"""Exported libraries under test: built with a C compiler, run, compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import skforge
from skforge.engine.explanations.contributions import ContributionKernels
from skforge.exporters import check

COMPILER = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
}

#: Reads rows from a file, calls the function that is named, writes what it gives.
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "{name}.h"
int main(int argc, char **argv) {{
  const char *function = argv[1];
  int64_t n = atoll(argv[2]), row = atoll(argv[3]), column = atoll(argv[4]);
  int64_t bytes = atoll(argv[5]);
  size_t size = 0;
  FILE *file = fopen("rows.bin", "rb");
  void *rows = malloc(bytes + 1), *out = malloc(n * {widest} + 1);
  {name}_model *model;
  if (argc != 7 || !file || fread(rows, 1, bytes, file) != (size_t)bytes) return 100;
  if (strcmp({name}_checksum(), {upper}_CHECKSUM)) return 102;
  int code = {name}_open(1, &model);
  if (code) return code;
  {select}
  {calls}
  {name}_close(model);
  if (code) return code;
  file = fopen("out.bin", "wb");
  fwrite(out, size, n, file);
  fclose(file);
  free(rows);
  free(out);
  return 0;
}}
"""

_CALL = """\
if (!strcmp(function, "{function}_{given}")) {{
    code = {name}_{function}_{given}(model, ({row} *)rows, n, row, column,
                                    ({out} *)out);
    size = {columns} * sizeof({out});
  }}"""


@cache
def small_forest() -> Any:
    """Return a forest of XGBoost with 6 features and two classes."""
    xgboost = pytest.importorskip("xgboost")
    random = np.random.default_rng(0)
    X = np.round(random.standard_normal((800, 6)), 1).astype(np.float32)
    X[random.random(X.shape) < 0.05] = np.nan
    y = (np.nan_to_num(X).sum(axis=1) > 0).astype(int)
    model = xgboost.XGBClassifier(n_estimators=12, max_depth=5, n_jobs=1)
    return skforge.load_forest(model.fit(X, y))


@cache
def _made(kind: str, target: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    holder = tempfile.TemporaryDirectory(prefix="skforge-export-")
    folder = Path(holder.name) / "tiny"
    options = {"apply": True, "contribs": kind != "c"}
    skforge.export(small_forest(), folder, kind, target, **options)
    return holder, folder


def exported(folder: Path, kind: str = "object", target: str = "cpu") -> Path:
    """Return a copy of an export of the small forest, which is made once."""
    if target == "x86-64" and skforge.Target.host().arch != "x86_64":
        pytest.skip("x86-64 libraries are made on x86-64")
    return Path(shutil.copytree(_made(kind, target)[1], folder / "tiny"))


def metadata(folder: Path) -> dict[str, Any]:
    """Return the facts that an export wrote."""
    (file,) = folder.glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def run(command: list[str], folder: Path, **options: Any) -> str:
    """Run a command that has to succeed."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def predict(
    folder: Path,
    function: str,
    rows: NDArray[Any],
    *,
    variant: int | None = None,
    compiler: tuple[str, ...] = (),
    runner: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> NDArray[Any]:
    """Build a program around a function of an export; return what it computes.

    ``rows`` may have gaps between them, and between columns: their strides are passed.
    """
    facts = metadata(folder)
    result = facts["functions"][function.rpartition("_")[0]]
    steps = [stride // rows.itemsize for stride in rows.strides]
    many = 1 + sum((n - 1) * step for n, step in zip(rows.shape, steps, strict=True))
    many = many if rows.size else 0
    whole = np.zeros(many, rows.dtype)
    if many:
        np.lib.stride_tricks.as_strided(whole, rows.shape, rows.strides)[:] = rows
    whole.tofile(folder / "rows.bin")
    command = list(compiler or (COMPILER or "cc",))
    command += ["-Wall", "-Wextra", "-Werror", *flags, "-o", "driver", "driver.c"]
    command += [facts["library"], "-Wl,-rpath,.", "-lm"]
    built = folder / "built.txt"
    if not built.exists() or built.read_text() != " ".join(command):
        (folder / "driver.c").write_text(_driver(facts))
        run(command, folder)
        built.write_text(" ".join(command))
    chosen = -1 if variant is None else variant
    numbers = map(str, (len(rows), *steps, many * rows.itemsize, chosen))
    run([*runner, "./driver", function, *numbers], folder, timeout=120)
    found = np.fromfile(folder / "out.bin", result["dtype"])
    columns = result["columns"]
    return found if columns == 1 else found.reshape(len(rows), columns)


def _driver(facts: dict[str, Any]) -> str:
    name, functions = facts["name"], facts["functions"]
    calls = [
        _CALL.format(
            name=name,
            function=function,
            given=given,
            row=row,
            out=C_TYPES[result["dtype"]],
            columns=result["columns"],
        )
        for function, result in functions.items()
        for given, row in (("f32", "float"), ("f64", "double"))
    ]
    select = "if (atoi(argv[6]) >= 0 && "
    select += f"{name}_select(model, atoi(argv[6]))) return 101;"
    return DRIVER.format(
        name=name,
        upper=name.upper(),
        widest=8 * max(result["columns"] for result in functions.values()),
        select="" if facts["kind"] == "c" else select,
        calls="\n  ".join(calls),
    )


_compiled = cache(skforge.compile_forest)


def expected(forest: Any, function: str, rows: Any, target: str = "cpu") -> Any:
    """Return what Python gives for a function of the library.

    Contributions have the bits of the CPU: some have no fused multiply-add.
    """
    module = _compiled(forest)
    if function == "apply":
        return module.apply(rows)
    if function == "predict_contribs" and target == "cpu":
        return module.predict_contribs(rows)
    if function == "predict_contribs":
        made = ContributionKernels(forest, skforge.Target.parse(target)).values(rows, 1)
        return made[:, 0] if forest.n_outputs == 1 else made
    return check.expected(forest, function, module.predict_raw(rows), rows)


def compare(
    folder: Path, forest: Any, function: str, rows: Any, target: str = "cpu", **how: Any
) -> None:
    """Compare a function of an export with Python's, for rows of their own type."""
    found = predict(folder, f"{function}_f{8 * rows.itemsize}", rows, **how)
    wanted = expected(forest, function, np.ascontiguousarray(rows), target)
    assert found.dtype == wanted.dtype, function
    wanted = wanted.reshape(found.shape)
    np.testing.assert_array_equal(found, wanted, err_msg=function)
