"""A value that a stored model takes in no form is refused before there is a frame."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge.exceptions import SourceNeededError
from skforge.runtime.mappings import Mappings
from tests.comparing import refusal
from tests.kinds import MODELS as KINDS
from tests.plain import plain

pd = pytest.importorskip("pandas")

rng = np.random.default_rng(0)
X = pd.DataFrame(
    {
        "age": rng.integers(18, 80, 300).astype(float),
        "city": rng.choice(["Bonn", "Ulm", "Kiel"], 300),
        "flag": rng.random(300) < 0.5,
    }
)
Y = (X["age"] + 20 * (X["city"] == "Ulm") > 50).astype(int)
GOOD = {"age": 41.0, "city": "Ulm", "flag": True}
UNKNOWN = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
ENCODERS = {
    "one-hot": OneHotEncoder(handle_unknown="ignore"),
    "one-hot, strict": OneHotEncoder(),
    "ordinal": OrdinalEncoder(**UNKNOWN),
    "target": TargetEncoder(random_state=0),
}
VALUES: list[tuple[str, Any]] = [
    *(("city", value) for value in (7, 7.5, True, b"Ulm", "Rom", None, np.nan, 1j)),
    *(("age", value) for value in (np.inf, -np.inf, 1e300, 1e30, None, True, 2**70)),
    *(("flag", value) for value in (2, None, np.inf, False)),
]


def pipeline(encoder: Any, scaler: Any) -> Any:
    columns = (scaler, ["age"]), (encoder, ["city"]), ("passthrough", ["flag"])
    return make_pipeline(
        make_column_transformer(*columns), DecisionTreeClassifier(max_depth=4)
    )


CODED = X.assign(city=X["city"].astype("category"))
MODELS: dict[str, tuple[Any, Any]] = {
    **{name: (pipeline(one, SimpleImputer()), X) for name, one in ENCODERS.items()},
    "scaled": (pipeline(ENCODERS["one-hot"], StandardScaler()), X),
    **{
        name: (KINDS[f"{name} of categories"].model, CODED)
        for name in ("hist", "lightgbm", "xgboost")
    },
}


def model(kind: str) -> Any:
    return skforge.load(stored(kind))


@cache
def stored(kind: str) -> bytes:
    (model, frame), file = MODELS[kind], io.BytesIO()
    skforge.save(plain(clone(model).fit(frame, Y)).fit(frame), file)
    return file.getvalue()


def forms(column: str, value: Any) -> list[Any]:
    row = {**GOOD, column: value}
    return [row, [GOOD, row], {name: [GOOD[name], row[name]] for name in GOOD}]


def asked(fast: Any, rows: Any) -> Any:
    try:
        return fast.predict_proba(rows).tolist()
    except (ValueError, TypeError) as error:
        return error


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_by_hand_is_refused_as_a_frame(kind, monkeypatch):
    by_hand, by_frame = model(kind), model(kind)
    cases = [(value, rows) for value in VALUES for rows in forms(*value)]
    found = [asked(by_hand, rows) for _, rows in cases]
    monkeypatch.setattr(Mappings, "refusal", lambda *how: None)
    for ((column, value), rows), answer in zip(cases, found, strict=True):
        expected = asked(by_frame, rows)
        if isinstance(answer, Exception):
            assert isinstance(expected, Exception), (column, value)
            assert f"{column!r} of " in str(answer) or str(answer) == str(expected)
        else:
            assert answer == expected, (column, value)


TEXTS = "training had texts there. Pass a text, or None if it is missing."
TOLD = [
    ("one-hot", "city", 7, f"7; {TEXTS}"),
    ("ordinal", "city", b"Ulm", f"b'Ulm'; {TEXTS}"),
    (
        *("xgboost", "city", "Rom"),
        "'Rom', which training did not have. Pass a text that it had, or None if it is "
        "missing.",
    ),
    ("one-hot", "age", -np.inf, "-inf; the model takes finite numbers there."),
    (
        *("scaled", "age", 1e300),
        "1e+300; the model takes no numbers of this size there.",
    ),
]


@pytest.mark.parametrize(("kind", "column", "value", "text"), TOLD)
def test_the_error_names_key_and_value_without_a_frame(
    kind, column, value, text, monkeypatch
):
    fast = model(kind)
    expected = fast.predict_proba(GOOD)
    monkeypatch.setattr(Mappings, "frame", None)
    for rows, where in zip(
        forms(column, value), ("the row", "row 1", "row 1"), strict=True
    ):
        said = refusal(SourceNeededError, fast.predict_proba, rows)
        assert said == f"{column!r} of {where} is {text}"
    np.testing.assert_array_equal(fast.predict_proba(GOOD), expected)
