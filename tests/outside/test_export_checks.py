"""Wheels are asked for rows in every form before they are handed out."""

from __future__ import annotations

import io
import os
import zipfile
from typing import Any

import numpy as np
import pytest

import skforge
from skforge.exceptions import VerificationError
from skforge.exporters import api, check
from skforge.exporters.check_wheel import verify_wheel
from skforge.runtime.facts import WINDOWS
from tests.export_tools import needs_compiler
from tests.plain import plain

pd = pytest.importorskip("pandas")
pytestmark = [
    needs_compiler,
    pytest.mark.skipif(WINDOWS, reason="names of libraries"),
    pytest.mark.doors,
]

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.normal(size=200),
        "city": RNG.choice(["rome", "oslo", "bern"], 200),
        "size": RNG.normal(size=200),
        "plan": RNG.choice(["free", "pro"], 200),
    }
)
Y = ((FRAME["age"] > 0) ^ (FRAME["city"] == "rome") ^ (FRAME["plan"] == "pro")).astype(
    int
)
GAPS = FRAME.assign(age=FRAME["age"].where(RNG.random(200) > 0.2))


def _xgboost() -> Any:
    xgboost = pytest.importorskip("xgboost")
    frame = GAPS.astype({"city": "category", "plan": "category"})
    model = xgboost.XGBClassifier(
        n_estimators=8, max_depth=4, enable_categorical=True, n_jobs=1
    )
    return plain(model).fit(frame, Y)


def _catboost() -> Any:
    catboost = pytest.importorskip("catboost")
    model = catboost.CatBoostClassifier(
        iterations=8,
        depth=4,
        cat_features=["city", "plan"],
        verbose=0,
        allow_writing_files=False,
    )
    return plain(model.fit(GAPS, Y)).fit(GAPS)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Return what the check of each model's wheel gets."""
    folder, made = tmp_path_factory.mktemp("wheels"), {}

    def arguments(model):
        if model not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(api, "verify_wheel", lambda *a: made.update({model: a}))
                fast = {"xgboost": _xgboost, "catboost": _catboost}[model]()
                skforge.export(fast, folder / model, "wheel", batch_sizes=[1])
        return made[model]

    return arguments


def changed(wheel: bytes, file: str, old: str, new: str) -> bytes:
    """Return a wheel with another text in one of its files."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as given, zipfile.ZipFile(out, "w") as made:
        for name in given.namelist():
            data = given.read(name)
            if name.endswith(file):
                assert data.count(old.encode()) == 1, (file, old)
                data = data.replace(old.encode(), new.encode())
            made.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("model", ["xgboost", "catboost"])
def test_right_wheels_pass(wheels, model):
    verify_wheel(*wheels(model))


BY_NAME = "{name: X[there[name]] for name in self._names if name in there}"
FAULTS = {
    "columns of frames by position": (
        "xgboost",
        "_runtime/mappings.py",
        BY_NAME,
        "{name: X[list(there.values())[i]] for i, name in enumerate(self._names)}",
        "a frame",
    ),
    "categories by position": (
        "xgboost",
        "_runtime/mappings.py",
        "codes = list(map(table.get, labels, repeat(other)))",
        "codes = list(map(dict(zip(sorted(table), range(9)[::-1])).get, labels))",
        "mappings",
    ),
    "missing numbers as zero": (
        "xgboost",
        "_runtime/mapping_values.py",
        "def number_of(value: Any, name: str, where: str) -> float:\n",
        "def number_of(value: Any, name: str, where: str) -> float:\n"
        "    if value is None: return 0.0\n",
        "mappings",
    ),
    "None of one mapping as zero": (
        "xgboost",
        "_runtime/mappings.py",
        "[NAN if value is None else value for value in values]",
        "[0.0 if value is None else value for value in values]",
        "one mapping",
    ),
    "texts of another column": (
        "catboost",
        "_runtime/categories.py",
        "texts[places.index(place) :: len(places)]",
        "texts[len(places) - 1 - places.index(place) :: len(places)]",
        "arrays of objects",
    ),
    "booleans as texts": (
        "catboost",
        "_runtime/categories.py",
        "number = int(value)\n",
        "number = str(value) if isinstance(value, bool) else int(value)\n",
        "whole numbers, booleans and bytes",
    ),
    "an error": ("catboost", "_runtime/mappings.py", BY_NAME, "{}", "a frame"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(wheels, fault):
    model, file, old, new, form = FAULTS[fault]
    library, wheel, *rest = wheels(model)
    with pytest.raises(VerificationError) as error:
        verify_wheel(library, changed(wheel, file, old, new), *rest)
    assert f" for {form}, where the model answers as for an array" in str(error.value)


def test_nothing_is_written_then(wheels, tmp_path, monkeypatch):
    made = api.wheel

    def wrong(*given):
        name, wheel = made(*given)
        return name, changed(wheel, "_runtime/mappings.py", BY_NAME, "{}")

    monkeypatch.setattr(api, "wheel", wrong)
    fast = _xgboost()
    with pytest.raises(VerificationError) as error:
        skforge.export(fast, tmp_path / "wrong", "wheel", batch_sizes=[1])
    assert str(error.value).startswith("predict_raw of the wheel raises Inval")
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv("SKFORGE_CHECK", "off")
    skforge.export(fast, tmp_path / "wrong", "wheel", batch_sizes=[1])


@pytest.mark.parametrize(("null", "count"), [(True, None), (False, -1)])
def test_errors_of_encode_are_asked_for(monkeypatch, tmp_path, null, count):
    """A library that takes a null text, or a negative count, is no library."""
    encode = check._LoadedLibrary.encode

    def wrong(self, cells, asked=None, nothing=False, **named):
        if (named.get("null", False), named.get("count")) == (null, count):
            return encode(self, cells)
        return encode(self, cells, **named)

    monkeypatch.setattr(check._LoadedLibrary, "encode", wrong)
    code = 1 if null else 2
    with pytest.raises(VerificationError) as error:
        skforge.export(_catboost(), tmp_path / "model", batch_sizes=[1])
    assert str(error.value) == (
        f"encode of the library does not return error {code}; nothing was written. "
        "Please report this."
    )
