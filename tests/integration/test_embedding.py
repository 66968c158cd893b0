"""RandomTreesEmbedding: scikit-learn's matrices, to the dtype of each array."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import (
    RandomForestRegressor,
    RandomTreesEmbedding,
    VotingRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import UnsupportedModelError
from skforge.exceptions import SourceNeededError
from tests.kinds import FRAME, TWO
from tests.plain import plain
from tests.programs import run_python

X = FRAME.to_numpy()
NAMES = "get_feature_names_out"


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if sparse.issparse(wanted):
        for name in ("data", "indices", "indptr"):
            same(getattr(found, name), getattr(wanted, name))
    else:
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(100))
def test_random_embeddings(seed: int) -> None:
    random = np.random.default_rng(seed)
    model = RandomTreesEmbedding(
        int(random.integers(1, 30)),
        max_depth=random.choice([None, 1, 3, 8]),
        min_samples_leaf=int(random.integers(1, 9)),
        sparse_output=bool(random.integers(2)),
        random_state=seed,
    )
    rows = random.normal(size=(200, 4)).round(int(random.integers(0, 4)))
    missing = np.where(random.random(rows.shape) < 0.1, np.nan, rows)
    model.fit(missing if seed % 2 else rows)
    fast = plain(model).fit(rows)
    for part in (rows, rows[:1], missing, rows.tolist(), sparse.csr_matrix(rows)):
        same(fast.transform(part), model.transform(part))
    np.testing.assert_array_equal(fast.apply(rows), model.apply(rows))
    assert fast.counters()["library"]["calls"] == 0


@pytest.mark.parametrize("how", [{}, {"sparse_output": False}], ids=["sparse", "dense"])
def test_frames_pickles_and_files(how: dict[str, Any], tmp_path: Any) -> None:
    model = RandomTreesEmbedding(5, random_state=0, **how).fit(FRAME)
    fast = plain(model).fit(FRAME)
    skforge.save(fast, tmp_path / "a.skforge")
    others = skforge.load(tmp_path / "a.skforge"), pickle.loads(pickle.dumps(fast))
    for one in (fast, *others, fast.drop_estimator()):
        assert not hasattr(one, "predict")
        for rows in (FRAME, FRAME[:1], FRAME[::-1]):
            same(one.transform(rows), model.transform(rows))
        for wrong in (FRAME[:0], FRAME.iloc[:, :3], FRAME * np.inf):
            errors = []
            for own in (one, model):
                with warnings.catch_warnings(), pytest.raises(ValueError) as error:
                    warnings.simplefilter("ignore")
                    own.transform(wrong)
                errors.append(str(error.value).partition("\n")[0])
            assert errors[0] == errors[1]
    row = FRAME.iloc[0].to_dict()
    same(fast.transform(row), model.transform(FRAME[:1]))
    code = f"""
import numpy as np, skforge, sys
fast = skforge.load({str(tmp_path / "a.skforge")!r})
matrix = fast.transform(np.full((3, {FRAME.shape[1]}), 0.5))
assert "sklearn" not in sys.modules, [*sys.modules]
print(matrix.shape, matrix.sum())
"""
    assert run_python(code) == f"(3, {fast.forest_.n_leaves}) 15.0\n"


def test_the_settings_of_scikit_learn_count() -> None:
    model = RandomTreesEmbedding(5, random_state=0).fit(FRAME)
    fast = plain(model).fit(FRAME)
    if "sparse_interface" in sklearn.get_config():
        with sklearn.config_context(sparse_interface="sparray"):
            same(fast.transform(FRAME), model.transform(FRAME))
    model.sparse_output = False
    model.fit(FRAME).set_output(transform="pandas")
    fast.fit(FRAME)
    pd.testing.assert_frame_equal(fast.transform(FRAME), model.transform(FRAME))
    assert fast.counters()["library"]["calls"] == 1


def test_pipelines() -> None:
    embedding = RandomTreesEmbedding(5, random_state=0)
    step = plain(clone(embedding))
    own, ours = (
        make_pipeline(StandardScaler(), inner, LogisticRegression()).fit(X, TWO)
        for inner in (embedding, step)
    )
    same(ours.predict_proba(X), own.predict_proba(X))
    last = make_pipeline(StandardScaler(), embedding).fit(FRAME)
    fast = plain(last).fit(FRAME)
    same(fast.transform(FRAME), last.transform(FRAME))
    assert fast.counters()["library"]["calls"] == 0
    assert "folded into the trees" in fast.inspect("pipeline")


def test_leaves_without_a_column_are_refused() -> None:
    model = RandomTreesEmbedding(3, random_state=0).fit(X)
    encoder = model.one_hot_encoder_
    encoder.categories_[1] = encoder.categories_[1][1:]
    with pytest.raises(UnsupportedModelError, match="leaves without a column"):
        skforge.load_forest(model)


def test_transform_is_measured_and_columns_are_not_explained():
    X = np.random.default_rng(0).normal(size=(200, 4))
    model = RandomTreesEmbedding(n_estimators=5, random_state=0).fit(X)
    fast = plain(model).fit(X)
    text = str(fast.summary(X[:16], batch_sizes=[1, 16]))
    assert "Time of transform by batch size" in text
    with pytest.raises(UnsupportedModelError, match="something else than sums of its"):
        fast.predict_contribs(X[:2])


@pytest.mark.parametrize("named", [False, True])
def test_names_of_columns(named: bool, tmp_path: Path) -> None:
    rows = FRAME if named else X
    model = RandomTreesEmbedding(7, max_depth=4, random_state=0).fit(rows)
    wanted = model.get_feature_names_out()
    live = plain(model).fit(rows)
    skforge.save(live, tmp_path / "model.skforge")
    loaded = skforge.load(tmp_path / "model.skforge")
    dropped = plain(model).fit(rows).drop_estimator()
    for fast in (live, pickle.loads(pickle.dumps(live)), loaded, dropped):
        names = fast.get_feature_names_out()
        assert (names.dtype, names.tolist()) == (wanted.dtype, wanted.tolist())
    with pytest.raises(ValueError, match="input_features"):
        live.get_feature_names_out(["a"])
    with pytest.raises(SourceNeededError) as error:
        loaded.get_feature_names_out(["a"])
    assert str(error.value) == (
        "get_feature_names_out needs the RandomTreesEmbedding itself, which this "
        "CompiledForest was saved without; use the original model."
    )


def test_models_of_one_column_each_have_no_names_of_columns() -> None:
    assert not hasattr(plain(RandomForestRegressor(2)).fit(X, X[:, 0]), NAMES)
    votes = VotingRegressor([("a", RandomForestRegressor(2))]).fit(X, X[:, 0])
    fast = plain(votes).fit(X)
    assert getattr(fast, NAMES)().tolist() == ["votingregressor_a"]
    assert not hasattr(fast.drop_estimator(), NAMES)
