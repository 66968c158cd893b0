"""`import skforge` is cheap, and still offers every public name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import skforge
from skforge import exceptions

ROOT = Path(__file__).parents[1]
HEAVY = (
    "catboost",
    "cupy",
    "dask",
    "distributed",
    "joblib",
    "lightgbm",
    "llvmlite",
    "onnx",
    "pandas",
    "pyarrow",
    "pyspark",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "typer",
    "xgboost",
)


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return run.stdout.strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import skforge",
        "import skforge; dir(skforge)",
        "from skforge import Schedule, SkforgeError",
        "import skforge.distributed",
    ],
)
def test_import_loads_nothing_heavy(statement):
    code = f"{statement}; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize("engine", ["dask", "spark", "ray"])
def test_an_adapter_is_imported_without_its_engine(engine):
    code = (
        f"from skforge.distributed import {engine}; import sys;"
        "print([m for m in ('dask', 'distributed', 'pyspark', 'ray', 'pandas')"
        " if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_models_are_read_without_their_own_library():
    code = (
        "from skforge import load_forest; import sys;"
        "print([m for m in ('xgboost', 'lightgbm', 'catboost', 'onnx', 'pandas',"
        " 'llvmlite') if m in sys.modules])"
    )
    assert python(code) == "[]"


@pytest.mark.parametrize("name", skforge.__all__)
def test_every_public_name_resolves(name):
    assert getattr(skforge, name) is not None
    assert name in dir(skforge)


def test_every_exception_is_public():
    defined = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined <= set(skforge.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError) as error:
        skforge.Forrest  # noqa: B018
    assert str(error.value) == "module 'skforge' has no attribute 'Forrest'"
