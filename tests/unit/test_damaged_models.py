"""Damaged models of every format: an error of ours, or a forest that can be walked.

``tests/reliability`` lets each library judge many more of them; what errors say is
tested beside the other tests of each frontend.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np
import pytest

from skforge.exceptions import SkforgeError
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest
from tests.reliability import formats, mutate

DATA = Path(__file__).parents[1] / "data"
pytestmark = pytest.mark.filterwarnings("ignore:.*was saved by skforge.save")


def files(*names: str) -> list[bytes]:
    return [(DATA / name).read_bytes() for name in names]


def zipped(archive: str, left_out: str = "gblinear") -> list[bytes]:
    with ZipFile(DATA / archive) as held:
        names = [name for name in sorted(held.namelist()) if left_out not in name]
        return [held.read(name) for name in names]


def of_lightgbm() -> list[bytes]:
    lgb = pytest.importorskip("lightgbm")
    names = ("4.7.0-categories.txt", "4.7.0-multiclass.txt")
    boosters = [lgb.Booster(model_file=DATA / "lightgbm" / name) for name in names]
    return [json.dumps(one.dump_model()).encode() for one in boosters]


def of_onnx() -> list[bytes]:
    from tests.onnx_models import MODES, RandomTrees, make_model

    trees = RandomTrees(3, n_trees=3, modes=MODES)
    table = trees.table() | trees.weights("target", lambda tree: range(2))
    models = (
        make_model("TreeEnsemble", trees.lists(2, member=0.3), 4, version=5),
        make_model("TreeEnsembleRegressor", {**table, "n_targets": 2}, 4),
    )
    return [model.SerializeToString() for model in models]


def of_catboost(kind: str) -> list[bytes]:
    cb = pytest.importorskip("catboost")
    random = np.random.default_rng(0)
    X, texts = random.normal(size=(200, 3)), random.choice([*"abcdefgh"], (200, 2))
    y, found = X[:, 2] + (texts[:, 0] == "a"), []
    for rows, categories, how in (
        (X, None, {"depth": 2}),
        (X, None, {"grow_policy": "Lossguide"}),
        (np.c_[texts, X.astype(object)], [0, 1], {"max_ctr_complexity": 2}),
    ):
        pool = cb.Pool(rows, y, cat_features=categories)
        quiet = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
        model = cb.CatBoostRegressor(iterations=3, **quiet, **how).fit(pool)
        if kind == "CatBoost":
            found.append(model._serialize_model())
        else:
            with TemporaryDirectory() as folder:
                model.save_model(f"{folder}/model", format="json", pool=pool)
                found.append(Path(folder, "model").read_bytes())
    return found


OF_XGBOOST = ("3.2.0-onehot", "3.2.0-vector", "3.2.0-dart", "2.1.4-dart")
UBJSON = ("3.2.0-sets", "3.0.5-pruned", "3.2.0-softprob", "1.7.6-sets")
TEXTS = ("2.0.5-binary", "2.1.2-categories", "4.7.0-categories", "4.7.0-multiclass")
CONTENTS = {
    "XGBoost JSON": lambda: files(*(f"xgboost/{name}.json" for name in OF_XGBOOST)),
    "XGBoost UBJSON": lambda: files(*(f"xgboost/{name}.ubj" for name in UBJSON)),
    "XGBoost binary": lambda: zipped("xgboost/old_binary.zip"),
    "pickles": lambda: zipped("xgboost/old_pickles.zip", "1.7"),
    "LightGBM text": lambda: files(*(f"lightgbm/{name}.txt" for name in TEXTS)),
    "LightGBM JSON": of_lightgbm,
    "ONNX": of_onnx,
    "CatBoost": lambda: of_catboost("CatBoost"),
    "CatBoost JSON": lambda: of_catboost("CatBoost JSON"),
    ".skforge": lambda: zipped("formats/2.zip", "s.npz")[-2:-1],
}


@cache
def contents(kind: str) -> list[bytes]:
    return CONTENTS[kind]()


def changed(random: Random, kind: str, content: bytes) -> bytes:
    """Return bytes that are others here or there, or other values in their places."""
    if random.random() < 0.4 or kind == "pickles":
        return mutate.raw(random, content)
    kind = "XGBoost binary" if kind == "CatBoost" else kind  # whole numbers, too
    if kind.endswith(" JSON"):
        return mutate.as_text(mutate.document(random, json.loads(content)))
    return formats.changed(random, kind, content)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 9))]
)
@pytest.mark.parametrize("kind", CONTENTS)
def test_changed_models_are_refused_or_walked(kind, seed):
    random, ended = Random(seed), Counter()
    for _ in range(120 if kind.endswith("JSON") else 300):
        data = changed(random, kind, random.choice(contents(kind)))
        rounds = random.choice([None, None, (0, 1)])
        try:
            forest = load_forest(data, iteration_range=rounds)
        except SkforgeError:
            ended["refused"] += 1
            continue
        ended["read"] += 1
        if forest.n_features < 1000 and forest.n_outputs < 1000:
            with np.errstate(all="ignore"):
                reference_raw(forest, np.zeros((2, forest.n_features), np.float32))
    assert min(ended["read"], ended["refused"]) > 10, ended


@pytest.mark.parametrize("kind", CONTENTS)
def test_cut_models_are_refused(kind):
    for content in contents(kind)[:4]:
        whole = load_forest(content).content_hash()
        n = len(content)
        for size in {*range(0, n - 1, 1 + n // 60), *range(max(0, n - 60), n, 3)}:
            try:
                forest = load_forest(content[:size])
            except SkforgeError:
                continue
            # other things follow the trees
            assert kind in ("LightGBM text", "pickles", "ONNX")
            assert forest.content_hash() == whole
