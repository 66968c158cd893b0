"""Rows as mappings: the answers are those of the model itself to the frame of them.

A mapping has a value for each column, or a sequence of values; ``test_kinds.py`` asks
every kind of model for both, in all their forms.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import warnings
from collections import UserDict, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingRegressor,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction import DictVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge.engine.entry.mappings import CompiledDictReader
from skforge.exceptions import InvalidInputError
from skforge.runtime import mappings
from skforge.runtime.mapping_values import ColumnRule
from skforge.runtime.mappings import MappingColumns, Mappings
from tests.compared_calls import apart, called
from tests.comparing import refusal, saved
from tests.kinds import CLASSIFIERS, ISOLATION, SCALER
from tests.kinds import MODELS as MODEL_KINDS
from tests.plain import fit_both, plain
from tests.sklearn_rows import same_bits as same

pd = pytest.importorskip("pandas")

NAMES = ["age", "income", "height", "visits", "score"]
CITIES = ["Oslo", "Bergen", "Rome", "Lima"]
rng = np.random.default_rng(0)
X = pd.DataFrame(rng.normal(size=(300, 5)) * 20 + 40, columns=NAMES)
y = ((X["age"] > X["score"]) * 1 + (X["visits"] > 40)).to_numpy()
FOREST = RandomForestClassifier(8, max_depth=5, random_state=0)
OF_FOREST = clone(FOREST).fit(X, y)
X_CITY = X.assign(city=pd.Categorical.from_codes(rng.integers(0, 4, 300), CITIES))
X_TEXT = X_CITY.astype({"city": object})
OF_CITY = (X_CITY["city"].isin(["Rome", "Oslo"]) ^ (X["age"] > 40)).astype(int)


def by_name(*behind: Any) -> Any:
    columns = ColumnTransformer(
        [
            ("scaled", StandardScaler(), ["score", "age"]),
            ("filled", SimpleImputer(), ["visits"]),
            ("left", "drop", ["height"]),
        ]
    )
    return make_pipeline(columns, *behind, FOREST)


def encoded(*steps: Any) -> Any:
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer(
        (StandardScaler(), ["visits", "age"]), (encoder, ["city"])
    )
    return make_pipeline(columns, *steps, FOREST)


MODELS: dict[str, tuple[Any, Any]] = {
    **{
        name: (model, X)
        for name, model in {
            **CLASSIFIERS,
            "regressor": GradientBoostingRegressor(n_estimators=4),
            "isolation": ISOLATION,
            "calibrated": CalibratedClassifierCV(
                FrozenEstimator(make_pipeline(SCALER, FOREST).fit(X, y))
            ),
            "scaler": make_pipeline(SCALER, FOREST),
            "union": make_pipeline(make_union(SCALER, MinMaxScaler()), FOREST),
            "by name": by_name(),
            "steps in their library": make_pipeline(PCA(2), FOREST),
        }.items()
    },
    "one column": (DecisionTreeClassifier(max_depth=3), X[["age"]]),
    "texts by name": (encoded(), X_TEXT),
    "texts, steps": (encoded(PCA(3)), X_TEXT),
    **{
        f"{name} of categories": (MODEL_KINDS[f"{name} of categories"].model, X_CITY)
        for name in ("xgboost", "lightgbm", "hist")
    },
}


def fitted(name: str) -> tuple[Any, Any, Any]:
    """Return a model, its compiled form and the frame of training."""
    model, frame = MODELS[name]
    model, fast = fit_both(clone(model), frame, OF_CITY if "city" in frame else y)
    if frame is X_CITY and not any(fast.forest_.category_names):
        pytest.skip("this XGBoost keeps no names of categories")
    return model, fast, frame


@pytest.fixture(scope="module", params=MODELS)
def trio(request: Any) -> tuple[Any, Any, Any]:
    return fitted(request.param)


@pytest.fixture
def fast() -> Any:
    return compiled(OF_FOREST)


def compiled(model: Any, rows: Any = X) -> Any:
    return plain(model).fit(rows)


def frame_of(rows: Any, columns: Any = NAMES) -> Any:
    rows = rows if isinstance(rows, list) else [rows]
    return pd.DataFrame(rows)[columns].astype(np.float64)


def shapes(frame: Any) -> Iterator[tuple[Any, Any]]:
    """Yield mappings, with the frames that they stand for."""
    yield frame.to_dict("records"), frame
    yield frame.iloc[4].to_dict(), frame[4:5]
    order = rng.permutation([*frame.columns])
    yield {name: frame[name].tolist() for name in order}, frame
    yield UserDict({name: np.array(frame[name]) for name in order}), frame
    yield MappingProxyType({name: tuple(frame[name]) for name in order}), frame


@pytest.mark.sampled(9)
def test_methods_and_mappings(trio: Any) -> None:
    model, fast, frame = trio
    before = pickle.dumps(model)
    for given, some in shapes(frame[:30]):
        kept = given if isinstance(given, MappingProxyType) else copy.deepcopy(given)
        same(fast.predict(given), model.predict(some))
        same(fast.predict_raw(given), wanted := fast.predict_raw(some))
        out = np.empty_like(wanted)
        assert fast.predict_raw(given, out=out) is out
        same(out, wanted)
        if hasattr(fast, "apply"):
            same(fast.apply(given), fast.apply(some))
        if hasattr(model, "score") and len(some) > 1:
            assert fast.score(given, y[:30]) == fast.score(some, y[:30])
        with contextlib.suppress(skforge.exceptions.UnsupportedModelError):
            same(fast.predict_contribs(given), fast.predict_contribs(some))
        if isinstance(given, UserDict):
            assert [*map(type, given.values())] == [np.ndarray] * frame.shape[1]
            given, kept = ({k: [*v] for k, v in one.items()} for one in (given, kept))
        assert given == kept
    assert pickle.dumps(model) == before


@pytest.mark.sampled(6)
def test_no_rows(trio: Any) -> None:
    model, fast, frame = trio
    for kind in (list, np.asarray):
        columns = {name: kind(frame[name][:0]) for name in frame}
        wanted = called(model.predict, frame[:0])
        assert not apart(called(fast.predict, columns), wanted, columns)


# ------------------------------------------------------------ errors

ROW = X.iloc[0].to_dict()
CAPITAL = {"Visits" if name == "visits" else name: ROW[name] for name in NAMES}
COLUMNS = {name: X[name][:3].tolist() for name in NAMES}
GIVE = "Give every column of the model, with None where the value is missing."
ABSENT = f"has no 'visits'; its nearest key is 'Visits'. {GIVE}"
ALIKE = "give every key one value, or every key a sequence."
ERRORS: dict[str, tuple[Any, str]] = {
    "absent": (CAPITAL, f"the row {ABSENT}"),
    "absent in a later row": ([ROW, CAPITAL], f"row 1 {ABSENT}"),
    "all absent": (
        {},
        f"the row has no 'age', 'income', 'height', 'visits', 'score'. {GIVE}",
    ),
    "absent, not by default": (defaultdict(float, CAPITAL), f"the row {ABSENT}"),
    "absent in a list, not by default": (
        [defaultdict(float, one) for one in (ROW, CAPITAL)],
        f"row 1 {ABSENT}",
    ),
    "absent columns": (
        {"age": [1, 2], "visit": [3, 4]},
        "the mapping has no 'income', 'height', 'visits', 'score'; for 'visits', the "
        f"nearest key is 'visit'. {GIVE}",
    ),
    "mixed rows": (
        [ROW, [1.0] * 5],
        "row 1 is of type list, but row 0 is a mapping; make all of them mappings.",
    ),
    "one value": (
        COLUMNS | {"height": 41},
        f"'height' has one value (41), but 'age' has a sequence of values; {ALIKE}",
    ),
    "a text": (
        COLUMNS | {"age": "one"},
        f"'age' has one value ('one'), but 'income' has a sequence of values; {ALIKE}",
    ),
    "one value in an array": (
        COLUMNS | {"age": np.array(1)},
        "'age' has one value (array(1)), but 'income' has a sequence of values; "
        f"{ALIKE}",
    ),
    "lengths": (
        COLUMNS | {"age": [1], "visits": [1]},
        "the columns have different numbers of values: 1 for 'visits' and 3 for "
        "'score'; give every column a value for each row, with None where it is "
        "missing.",
    ),
    "two dimensions": (
        COLUMNS | {"income": np.zeros((3, 2))},
        "'income' of row 0 is of type list, but a row has one value there; for "
        "columns of values pass one mapping of sequences.",
    ),
    "spans of time": (
        COLUMNS | {"income": np.array([1, 2, 3], "m8[s]")},
        "'income' of row 0 is np.timedelta64(1,'s'), which is not a number; pass a "
        "DataFrame whose column has the dtype that it had in training.",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors(fast: Any, kind: str) -> None:
    given, text = ERRORS[kind]
    for one in (fast, fast.drop_estimator()):
        for method in ("predict", "predict_proba", "predict_log_proba", "apply"):
            assert refusal(InvalidInputError, getattr(one, method), given) == text


BAD = [
    ("forty", "is 'forty', which is not a number; pass a number, or None if it is "),
    ("41", "is '41', which is not a number"),
    (np.str_("41"), "is .*, which is not a number"),
    (b"41", "is b'41', which is not a number"),
    (1j, "is 1j, which is not a number"),
    (object, "is .*, which is not a number"),
    (pd.NaT, "is NaT, which is not a number"),
    (pd.Timestamp("2020-01-01"), "is .*; pass a DataFrame whose column has the dtype"),
    (np.timedelta64(3, "D"), "is .*, which is not a number; pass a DataFrame whose "),
    (Decimal("sNaN"), "is .*, which is not a number"),
    ({41}, "is of type set, but a row has one value there; for columns of values "),
    ({"a": 41}, "is of type dict, but a row has one value there"),
    (np.array(41.0), "is of type ndarray, .* pass one mapping of sequences"),
    (10**400, "is a whole number too large for float64 .above 1e308."),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("value", "text"), BAD)
def test_a_value_that_is_no_number(fast: Any, value: Any, text: str) -> None:
    row = {**ROW, "height": value}
    columns = {name: [1, row[name], 2] for name in NAMES}
    for method in ("predict", "apply", "predict_log_proba"):
        call = getattr(fast, method)
        for given, where in (
            (row, "the row"),
            ([ROW, row], "row 1"),
            (columns, "row 1"),
        ):
            with pytest.raises(InvalidInputError, match=f"^'height' of {where} {text}"):
                call(given)
    same(fast.predict(ROW), fast.estimator_.predict(frame_of(ROW)))


@pytest.mark.parametrize(
    "kind", ["forest", "xgboost", "lightgbm", "pipeline", "prefixed", "members"]
)
def test_models_without_names(kind: str) -> None:
    model = {
        "pipeline": make_pipeline(SCALER, FOREST),
        "prefixed": make_pipeline(PCA(2), FOREST),
        "members": CalibratedClassifierCV(make_pipeline(PCA(2), FOREST), cv=2),
        **CLASSIFIERS,
    }[kind]
    fast = compiled(clone(model).fit(X.to_numpy(), y), X.to_numpy())
    for given, _ in shapes(X[:9]):
        assert refusal(InvalidInputError, fast.predict, given) == (
            "the rows are mappings, but the model was trained without feature names; "
            "pass an array, or train the model on a DataFrame."
        )


# ------------------------------------------------------------ further keys


@pytest.mark.sampled(4)
def test_further_keys_are_ignored_with_one_warning(trio: Any, tmp_path: Path) -> None:
    model, fast, frame = trio
    good = frame.iloc[0].to_dict()
    row = {"id": "a", **good, "ages": [1], "tags": ["x"], "q": None}
    wanted = model.predict(frame[:1])
    many = {name: frame[name][:2] for name in frame} | {"note": "any"}
    where: dict[str, Any] = {"the row": row, "row 1": [good, row], "the mapping": many}
    steps = [step for _, step in getattr(model, "steps", ())]
    states = [lambda: plain(model).fit(frame), lambda: pickle.loads(pickle.dumps(fast))]
    with contextlib.suppress(skforge.UnsupportedModelError):
        skforge.save(fast, tmp_path / "fast.skforge")
        states.append(lambda: skforge.load(tmp_path / "fast.skforge"))
    for kind, given in where.items():
        for state in states:
            again = state()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    assert again.predict(given)[0] == wanted
                    for other in where.values():
                        assert again.predict(other)[0] == wanted
                    same(again.predict([row] * 3), [*wanted] * 3)
                    again.predict({**good, "later": 1})
            told = [
                one for one in caught if one.category is skforge.exceptions.InputWarning
            ]
            if any(isinstance(step, ColumnTransformer) for step in steps):
                assert not told  # as of frames
                continue
            (said,) = told
            assert said.filename == __file__
            named = "'id', 'ages' (its nearest column is 'age'), 'tags' and 1 more"
            assert str(said.message) == (
                f"{kind} has keys that are not columns of the model: "
                f"{named if kind != 'the mapping' else repr('note')}. They are "
                "ignored; of such keys in later rows, nothing is said."
            )


def test_errors_stay_errors_beside_further_keys(fast: Any) -> None:
    row = ROW | {"id": 7}
    with pytest.warns(skforge.exceptions.InputWarning, match="'id'"):
        fast.predict(row)
    capital = {key.replace("age", "Age"): value for key, value in row.items()}
    for _ in range(2):
        for given in (capital, [row, capital]):
            with pytest.raises(InvalidInputError, match="its nearest key is 'Age'"):
                fast.predict(given)
        with pytest.raises(InvalidInputError, match=r"has no 'visits'\. Give"):
            fast.predict({key: row[key] for key in row if key != "visits"})
        with pytest.raises(InvalidInputError, match="'age' of row 1 is 'x'"):
            fast.predict([row, row | {"age": "x"}])


@pytest.mark.parametrize(
    ("model", "used"),
    [
        (by_name(), ("age", "score", "visits")),
        (by_name(PCA(2)), ("age", "score", "visits")),
        (encoded(), ("city", "visits", "age")),
    ],
    ids=["folded", "in its library", "texts"],
)
def test_columns_by_name_ignore_other_keys(model: Any, used: Any) -> None:
    fast = compiled(model.fit(X_TEXT, y), X_TEXT)
    for given, some in shapes(X_TEXT[:5]):
        wanted = model.predict_proba(some)
        for one in given if isinstance(given, list) else [given]:
            one = {name: one[name] for name in used}
            for more in ({}, {"note": "any"}, {"list": [4], 1: None, "height": X}):
                found = fast.predict_proba({**one, **more})
                same(found, wanted[: len(found)])
            if isinstance(given, list):
                same(fast.predict_proba([one]), wanted[:1])
                wanted = wanted[1:]
    gone = {name: 1.0 for name in used[1:]}
    for given, where in ((gone, "the row"), ({k: [1] for k in gone}, "the mapping")):
        with pytest.raises(InvalidInputError, match=f"^{where} has no '{used[0]}'"):
            fast.predict(given)


@pytest.mark.parametrize("inner", [("scaled", "filled"), ("filled", "forest")])
def test_members_that_take_other_columns_by_name(inner: Any) -> None:
    """Mappings have the columns of all members, not those of the first one."""
    taken = {"scaled": ["score", "age"], "filled": ["visits"]}
    members = [
        (kind, make_pipeline(ColumnTransformer([("", SimpleImputer(), at)]), FOREST))
        for kind, at in taken.items()
        if kind in inner
    ]
    members += [("forest", FOREST)] * ("forest" in inner)
    model = VotingClassifier(members, voting="soft").fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model itself answers
        fast = compiled(model)
    needed = NAMES if "forest" in inner else ["age", "score", "visits"]
    row = X.iloc[0].to_dict()
    used = {name: row[name] for name in needed}
    wanted = model.predict_proba(frame_of(row))
    same(fast.predict_proba(used), wanted)
    same(fast.predict_proba([used, used]), wanted[[0, 0]])
    same(fast.predict_proba({**used, "note": 1}), wanted)
    with pytest.raises(InvalidInputError, match="the row has no 'visits'"):
        fast.predict({name: row[name] for name in needed if name != "visits"})


@pytest.mark.parametrize("alone", [False, True])  # one function takes all columns
def test_dates_before_a_function_of_dates(alone: bool) -> None:
    def months(frame: Any) -> Any:
        return frame.assign(when=frame.when.dt.month.fillna(0))

    start = pd.Timestamp("2024-05-01 10:30")
    frame = X.assign(when=start + pd.to_timedelta(np.arange(len(X)), unit="D"))
    names = ["when", "age"] if alone else ["when"]
    steps = make_column_transformer(
        (FunctionTransformer(months), names), remainder="passthrough"
    )
    model, fast = fit_both(make_pipeline(steps, FOREST), frame, y)
    row = frame.iloc[0].to_dict()
    for when in (start, start.to_pydatetime(), start.to_datetime64(), pd.NaT):
        given = {**row, "when": when}
        wanted = model.predict(pd.DataFrame([given]))
        same(fast.predict(given), wanted)
        same(fast.predict([row, given])[1:], wanted)
    abroad = {**row, "when": start.tz_localize("Europe/Berlin")}
    same(fast.predict(abroad), model.predict(pd.DataFrame([abroad])))
    same(fast.predict(frame[:9].to_dict("list")), model.predict(frame[:9]))
    same(fast.predict({**frame}), model.predict(frame))
    with pytest.raises(AttributeError, match="dt accessor"):  # the function's own
        fast.predict({**row, "when": "yesterday"})


# ------------------------------------------------------------ categories


def city_frame(rows: list[dict[str, Any]], categories: Any) -> Any:
    frame = pd.DataFrame(rows)[[*NAMES, "city"]]
    frame[NAMES] = frame[NAMES].astype(np.float64)
    return frame.assign(city=pd.Categorical(frame["city"], categories=categories))


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "hist"])
def test_unseen_and_missing_categories(kind: str) -> None:
    """Labels that training had, in sequences of all kinds, are in ``test_kinds.py``."""
    arrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    model, fast, _ = fitted(f"{kind} of categories")
    known = [{**ROW, "city": city} for city in (*CITIES, None, np.str_("Rome"))]
    new = {**ROW, "city": "Paris"}
    for rows, lists in (
        *((one, CITIES) for one in (known, *([row] for row in known))),
        *((one, [*CITIES, "Paris"]) for one in ([new], [new, known[0]])),
    ):
        frame, cities = city_frame(rows, lists), [row["city"] for row in rows]
        columns = {name: [row[name] for row in rows] for name in frame}
        given = [(rows, frame), (rows[0], frame[:1]), (columns, frame)]
        for column in (
            *(np.array(cities, object), pd.Categorical(cities)),
            *(pd.array(cities, dtype="string"), arrow.array(cities)),
            polars.Series(cities, dtype=polars.Categorical),
        ):
            numbers = {name: np.array(columns[name]) for name in NAMES}
            given.append(({**numbers, "city": column}, frame))
        for ours, theirs in given:
            wanted = called(model.predict_proba, theirs)
            assert not apart(called(fast.predict_proba, ours), wanted, rows)
    with pytest.raises(InvalidInputError, match="'city' of row 0 is of type list"):
        fast.predict([{**ROW, "city": ["Oslo"]}])


def test_whole_numbers_as_categories() -> None:
    codes = pd.Categorical(rng.integers(1, 6, 300), categories=[5, 1, 2, 3, 4])
    frame = X.assign(city=codes)
    model = clone(CLASSIFIERS["lightgbm"])
    model.fit(frame, (codes.isin([1, 4])) ^ (X["age"] > 40))
    fast = compiled(model, frame)
    for value in (1, 2, 5, np.int64(4), 3.0, 9, 2.5, "1", None):
        row = {**ROW, "city": value}
        known = value if value in (1, 2, 3, 4, 5) else None
        wanted = model.predict_proba(
            city_frame([{**ROW, "city": known}], [5, 1, 2, 3, 4])
        )
        columns = [
            {name: kind([row[name]]) for name in row} for kind in (list, np.array)
        ]
        for given in (row, [row], *columns):
            same(fast.predict_proba(given), wanted)
    for given in ({**ROW, "city": True}, {name: [2, True] for name in frame}):
        with pytest.raises(InvalidInputError, match=r"is True.* pass 1 if that"):
            fast.predict(given)


# ------------------------------------------------------------ texts


def texts(unknown: float | None = None, missing: float | None = None) -> Mappings:
    """Return a reader of a model with a text column, places 2 and 0 of 4."""
    table = {"Oslo": 5.0, "Rome": 7.0}
    city = ColumnRule("city", 2, table, missing=missing, unknown=unknown)
    return Mappings(
        MappingColumns((city, ColumnRule("age", 0)), 4, ignores=True),
        CompiledDictReader,
    )


def entry(rows: Any) -> Any:
    return rows.copy()


def test_texts_become_codes() -> None:
    reader = texts()
    for given in ({"city": "Rome", "age": 3}, [{"age": 3, "city": np.str_("Rome")}]):
        same(reader.ask(entry, given), np.array([[3.0, 0.0, 7.0, 0.0]]))
    rows = [{"city": "Oslo", "age": None}, {"city": "Rome", "age": 1, "more": 2}]
    wanted = np.array([[np.nan, 0.0, 5.0, 0.0], [1.0, 0.0, 7.0, 0.0]])
    same(reader.ask(entry, rows), wanted)
    same(reader.ask(entry, rows[0]), wanted[:1])


def test_texts_without_codes() -> None:
    for label in ("Paris", "oslo", None, float("nan"), 5, True, b"Oslo"):
        row = {"city": label, "age": 3}
        gone = label is None or label != label
        for given in (row, [row], [{"city": "Oslo", "age": 1}, row]):
            assert texts().ask(entry, given) is None
            found = texts(9.0, np.nan).ask(entry, given)
            if not (gone or isinstance(label, str)):
                assert found is None  # the source compares it with texts
                continue
            same(found[-1], np.array([3.0, 0.0, np.nan if gone else 9.0, 0.0]))
        frame = texts().frame(row)
        assert [*frame.columns] == ["city", "age"]
        assert frame["age"].dtype == np.float64
        assert gone == bool(frame["city"].isna()[0])
        assert gone or frame["city"][0] == label
    with pytest.raises(InvalidInputError, match=r"^'city' of row 0 is of type list"):
        texts().ask(entry, [{"city": ["Oslo"], "age": 3}])
    with pytest.raises(InvalidInputError, match=r"^'age' of row 1 is 'x'"):
        texts().ask(entry, [{"city": "Oslo", "age": c} for c in (1, "x")])


def test_numbers_as_labels() -> None:
    table = {1.0: 5.0, 2.0: 6.0, None: 7.0}
    reader = Mappings(
        MappingColumns((ColumnRule("a", 0, table, np.nan, 9.0),), 1), CompiledDictReader
    )
    for label, code in ((1, 5.0), (2.0, 6.0), (None, 7.0), (3.0, 9.0), ("1", 9.0)):
        same(reader.ask(entry, {"a": label}), np.array([[code]]))
    for label in (float("nan"), np.float64("nan"), pd.NA):
        same(reader.ask(entry, [{"a": label}]), np.array([[np.nan]]))


def test_numbers_are_float64_where_steps_run_in_their_library() -> None:
    """In a frame of whole numbers the imputer would refuse its fill value."""
    fill = SimpleImputer(strategy="constant", fill_value=0.5)
    model = make_pipeline(fill, PCA(2), FOREST).fit(X, y)
    fast, values = compiled(model), [1, True, 2.5, Decimal(7), np.int8(3)]
    for row in (dict(zip(NAMES, values, strict=True)), dict.fromkeys(NAMES, 3)):
        for rows in (row, [row] * 2):
            same(fast.predict_proba(rows), model.predict_proba(frame_of(rows)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["calibrated", "stack behind nothing"])
@pytest.mark.parametrize("first", ["passthrough", None, "nested", "union"])
def test_members_whose_first_step_knows_no_names(kind: str, first: Any) -> None:
    """The model's own code would take the number of keys for that of rows."""
    if first == "nested":
        first = make_pipeline("passthrough", None)
    elif first == "union":
        first = make_union("passthrough", PCA(2))
    inner = make_pipeline(first, PCA(2), FOREST)
    if kind == "calibrated":
        model = CalibratedClassifierCV(inner, cv=2)
    else:
        stack = StackingClassifier([("a", inner)], DecisionTreeClassifier(), cv=2)
        model = make_pipeline(None, stack)
    model.fit(X, y)
    fast = plain(model).fit(X)
    some = X[:7]
    cases = [(some.to_dict(kind), some) for kind in ("records", "list")]
    for given, frame in [*cases, (X.iloc[0].to_dict(), X[:1])]:
        same(fast.predict(given), model.predict(frame))
        same(fast.predict_proba(given), model.predict_proba(frame))


def test_rows_that_are_mappings_in_training() -> None:
    rows = X.to_dict("records")
    steps = make_pipeline("passthrough", DictVectorizer(sparse=False), FOREST)
    model, fast = fit_both(VotingClassifier([("a", steps)], voting="soft"), rows, y)
    few = [{"age": 30.0}, {"score": 80.0, "other": 1.0}]
    same(fast.predict_proba(few), model.predict_proba(few))


def test_any_values_go_to_the_source() -> None:
    reader = Mappings(
        MappingColumns((ColumnRule("a", 0, {}), ColumnRule("b", 1)), 2),
        CompiledDictReader,
    )
    for value in ("text", ["a", "list"], 3):
        row = {"b": 1, "a": value}
        assert reader.ask(entry, [row]) is None
        frame = reader.frame([row, row])
        assert frame["a"].tolist() == [value, value]
    assert reader.ask(entry, {"b": 1, "a": "text"}) is None


@pytest.mark.parametrize("own", [None, np.nan])
def test_a_missing_text_is_as_in_training(own: Any) -> None:
    texts = pd.DataFrame({"a": pd.Series(["x", "y", own] * 20, dtype=object)})
    model = make_pipeline(OneHotEncoder(), DecisionTreeClassifier(random_state=0))
    model.fit(texts, [0, 1, 2] * 20)
    fast = plain(model).fit(texts)
    for missing in (None, np.nan, pd.NA):
        rows = [{"a": "x"}, {"a": missing}]
        assert fast.predict(rows).tolist() == [0, 2]
        assert fast.predict({"a": missing}).tolist() == [2]
        gap = fast._predictor.mappings.frame(rows)["a"][1]
        assert gap is None if own is None else np.isnan(gap)


LETTERS = pd.Series(np.random.default_rng(3).choice([*"xyz", ""], len(X))).replace(
    {"": None}
)
ENCODERS = {
    "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "target": TargetEncoder(cv=3),
    "filled": make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()),
    "marks": MissingIndicator(),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("steps", [[], [SimpleImputer(), PCA(1)]], ids=["all", "some"])
@pytest.mark.parametrize("dtype", ["str", "category", object])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_missing_text_alone_and_beside_others(encoder, dtype, steps, tmp_path):
    """Alone and beside others: NaN, and None where the encoder knows None itself."""
    gaps = LETTERS.isna()
    text = LETTERS.astype(dtype)
    if dtype is object and encoder in ("filled", "marks"):
        text = text.where(~gaps, np.nan)
    frame = pd.DataFrame({"a": text})
    first = make_column_transformer((clone(ENCODERS[encoder]), ["a"]))
    model = make_pipeline(first, *steps, clone(FOREST)).fit(frame, gaps | (text == "x"))
    fast = plain(model).fit(frame)
    for method in ("predict", "predict_proba"):
        own = getattr(model, method)(frame[gaps])[:1]
        known = getattr(model, method)(frame[~gaps])[:1]
        call, x = getattr(fast, method), {"a": text[~gaps].iloc[0]}
        same(call({"a": None}), own)
        same(call([{"a": None}, x, x])[:2], [own[0], known[0]])
        if dtype is not object:
            same(call({"a": float("nan")}), own)
    if not steps:
        given = [{"a": None}, x]
        found = saved(fast, tmp_path).predict_proba(given)
        same(found, fast.predict_proba(given))


@pytest.mark.parametrize("function", [np.arctan, None])
def test_a_missing_number_alone_is_one(function: Any) -> None:
    """In a column of objects, an encoder sees None, and a function of NumPy fails."""
    numbers = pd.DataFrame({"a": np.where(np.arange(len(X)) % 4, X["age"] % 5, np.nan)})
    step = OneHotEncoder() if function is None else FunctionTransformer(function)
    first = make_column_transformer((step, ["a"]), sparse_threshold=0)
    steps = [SimpleImputer(), PCA(1)] if function is None else []
    model, fast = fit_both(make_pipeline(first, *steps, clone(FOREST)), numbers, y)
    expected = model.predict_proba(numbers[:1])
    same(fast.predict_proba({"a": None}), expected)


def test_texts_where_only_gaps_count() -> None:
    frame = pd.DataFrame({"a": LETTERS.astype("str"), "b": X["age"].to_numpy()})
    columns = make_column_transformer(
        (MissingIndicator(), ["a"]), ("passthrough", ["b"])
    )
    model, fast = fit_both(make_pipeline(columns, clone(FOREST)), frame, y)
    rows = [{"a": text, "b": 30} for text in ("x", "new", None, "1")]
    given = pd.DataFrame(rows).astype({"a": "str", "b": float})
    same(fast.predict_proba(rows), model.predict_proba(given))
    for row, own in zip(rows, model.predict_proba(given), strict=True):
        same(fast.predict_proba(row)[0], own)
    with pytest.raises(
        InvalidInputError, match="'b' of the row is '1', which is not a"
    ):
        fast.predict({"a": "x", "b": "1"})
    with pytest.raises(ValueError, match="infinity"):
        fast.predict({"a": np.inf, "b": 1})


# ------------------------------------------------------------ frames of pipelines


@pytest.mark.parametrize("kind", ["scaler", "union", "by name"])
def test_small_frames_of_pipelines(kind: str, monkeypatch: Any) -> None:
    mixed = X.assign(age=X["age"].astype(int), height=X["height"].astype("i2"))
    mixed.loc[::4, "visits"] = np.nan
    model, fast = fit_both(clone(MODELS[kind][0]), mixed, y)
    first = mixed.iloc[:6].assign(note="text")
    given = [first.iloc[[i]] for i in range(6)]
    given += [pd.DataFrame([row]) for row in first.to_dict("records")]
    given += [first, first.iloc[::-1], first[[*NAMES[::-1], "note"]]]
    if kind != "by name":
        given = [frame[NAMES] for frame in given]
    wanted = [model.predict_proba(frame) for frame in given]
    asked = []
    monkeypatch.setattr(type(model), "predict_proba", lambda *_: asked.append(1))
    for frame, one in zip(given, wanted, strict=True):
        same(fast.predict_proba(frame), one)
    assert not asked  # the kernels answered, with integers beside missing values


# ------------------------------------------------------------ around a model


@pytest.mark.parametrize(
    "kind",
    ["forest", "texts by name", "xgboost of categories", "lightgbm of categories"],
)
def test_without_pandas(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Models and artifacts answer without a frame, however many rows there are."""
    model, fast, frame = fitted(kind)
    cases = [(given, model.predict_proba(some)) for given, some in shapes(frame)]
    loaded = saved(fast, tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for given, wanted in cases:
        for one in (fast, loaded):
            same(one.predict_proba(given), wanted)
    if kind == "forest":
        with pytest.raises(InvalidInputError, match="pandas is not installed"):
            fast.apply(cases[0][0])


def test_large_batches_do_not_need_a_frame(fast: Any, monkeypatch: Any) -> None:
    """Entries decline more than a million values; kernels answer."""
    columns = {name: np.tile(X[name], 1000) for name in NAMES}
    wanted = np.tile(OF_FOREST.predict_proba(X), (1000, 1))
    monkeypatch.setattr(Mappings, "frame", None)
    same(fast.predict_proba(columns), wanted)


def test_boosters_and_files(tmp_path: Any) -> None:
    model = clone(CLASSIFIERS["xgboost"]).fit(X, y)
    rows = X.iloc[:9].to_dict("records")
    wanted = model.predict_proba(X.iloc[:9])
    model.save_model(tmp_path / "model.json")
    for given in (model.get_booster(), tmp_path / "model.json"):
        fast = compiled(given)
        same(fast.predict_proba(rows), wanted)
        same(fast.predict_proba(rows[1]), wanted[1:2])


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e39])
def test_large_batches_with_values_that_the_model_may_refuse(value: float) -> None:
    """They have the model's own answer or error, as from a frame."""
    for model in (GradientBoostingRegressor(n_estimators=4), clone(FOREST)):
        fast = compiled(model.fit(X, y))
        frame = pd.DataFrame({name: np.tile(X[name], 1000) for name in NAMES})
        frame.loc[len(frame) - 1, "visits"] = value
        columns = {name: frame[name].to_numpy() for name in NAMES}
        assert not apart(
            called(fast.predict, columns), called(model.predict, frame), columns
        )


def test_numeric_arrays_are_not_read_one_by_one(fast: Any, monkeypatch: Any) -> None:
    columns = {name: X[name].to_numpy() for name in NAMES}
    read: list[int] = []
    own = mappings._is_plain
    monkeypatch.setattr(mappings, "_is_plain", lambda v: read.append(len(v)) or own(v))
    same(fast.predict(columns), fast.predict(X))
    same(fast.predict(columns | {"age": X["age"].tolist()}), fast.predict(X))
    assert read == [0, len(X)]


def test_many_threads(fast: Any) -> None:
    rows = X.to_dict("records") * 10
    wanted = fast.predict_proba(rows)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(fast.predict_proba, rows))
    same(np.concatenate(found), wanted)


def test_a_wrapper_around_a_pipeline_of_a_tree_alone() -> None:
    frame = pd.DataFrame({"a": [0.0, 1.0] * 20, "b": 1.0})
    pipeline = make_pipeline(DecisionTreeClassifier(random_state=0))
    _, fast = fit_both(OneVsRestClassifier(pipeline), frame, frame.a)
    assert fast.predict({"b": 1, "a": 1}) == [1.0]
    assert fast.predict([{"b": 1, "a": 1}, {"a": 0, "b": None}]).tolist() == [1.0, 0.0]
