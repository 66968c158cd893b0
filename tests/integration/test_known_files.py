"""Files that the cache knows: their trees are read when something needs them."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

import skforge
from skforge import InvalidModelError, _container, compile_forest
from skforge.forest import record
from skforge.forest.forest import Forest
from skforge.runtime import object_cache
from tests.comparing import assert_same_forest
from tests.plain import plain

X, Y = make_classification(300, 6, random_state=0)
X = X.astype(np.float32)
MODEL = RandomForestClassifier(5, max_depth=6, random_state=0).fit(X, Y)
FAST = plain(MODEL).fit(X)


@pytest.fixture(params=["small", "large"])
def path(request, tmp_path, monkeypatch):
    """Return a file that was loaded once, with an empty cache of its own."""
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    if request.param == "large":
        monkeypatch.setattr(_container, "_LARGE", 0)
    path = tmp_path / "m.skforge"
    skforge.save(FAST, path)
    answers(skforge.load(path))
    return path


@pytest.fixture
def read(monkeypatch):
    """Return the list of forests whose arrays were read."""
    names = []
    honest = record.forest_in

    def forest_in(fields, arrays, of="forest"):
        names.append(of)
        return honest(fields, arrays, of)

    monkeypatch.setattr(record, "forest_in", forest_in)
    monkeypatch.setattr("skforge.persistence.loaded.forest_in", forest_in)
    return names


def answers(fast, rows=X[:1]):
    assert fast.predict_proba(rows).tobytes() == MODEL.predict_proba(rows).tobytes()


def assert_same(forest):
    assert_same_forest(FAST.forest_, forest)
    arrays = (getattr(forest, field.name) for field in fields(Forest))
    assert not any(a.flags.writeable for a in arrays if isinstance(a, np.ndarray))
    assert forest.content_hash() == replace(FAST.forest_).content_hash()


def test_no_tree_is_read_for_a_kernel_in_the_cache(path, read):
    fast = skforge.load(path)
    answers(fast)
    assert fast.n_features_in_ == 6
    assert fast.classes_.tolist() == [0, 1]
    assert (fast.forest_.n_trees, fast.forest_.n_outputs) == (5, 2)
    assert (fast.forest_.input_dtype, fast.forest_.accumulator_dtype) == ("f4", "f8")
    assert read == []


def test_a_forest_reads_its_arrays_once(path, read):
    fast = skforge.load(path)
    assert_same(fast.forest_)
    assert_same(fast.forest_)
    answers(fast, X)
    assert read == ["forest"]


COPIES = {
    "shallow": copy.copy,
    "deep": copy.deepcopy,
    "replaced": replace,
    "pickled": lambda forest: pickle.loads(pickle.dumps(forest)),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_have_all_arrays(how, path):
    assert_same(COPIES[how](skforge.load(path).forest_))


def test_what_needs_the_trees_reads_them(path):
    fast = skforge.load(path)
    assert (fast.apply(X) == MODEL.apply(X)).all()
    assert repr(fast.forest_) == repr(FAST.forest_)
    again = compile_forest(skforge.load(path).forest_)
    assert again.predict(X).tobytes() == MODEL.predict_proba(X).tobytes()
    np.testing.assert_array_equal(
        skforge.load(path).predict_contribs(X[:3]), FAST.predict_contribs(X[:3])
    )
    with pytest.raises(AttributeError):
        skforge.load(path).forest_.no_such_array  # noqa: B018


def test_saving_again_writes_the_same_bytes(path, tmp_path):
    skforge.save(skforge.load(path), tmp_path / "again.skforge")
    assert (tmp_path / "again.skforge").read_bytes() == path.read_bytes()


def test_modules_and_forests_are_known_too(path, tmp_path, read):
    for model in (FAST.forest_, compile_forest(FAST.forest_)):
        skforge.save(model, tmp_path / "other.skforge")
        for _ in range(2):
            loaded = skforge.load(tmp_path / "other.skforge")
            assert_same(getattr(loaded, "forest", loaded))


def test_damage_is_noticed_where_it_matters(path):
    large = _container._LARGE == 0
    content = path.read_bytes()
    at = content.index(np.asarray(FAST.forest_.threshold).tobytes())
    fast = skforge.load(path)
    path.write_bytes(content[:at] + b"???" + content[at + 3 :])
    text = r"its array 'forest.threshold' is damaged. Save the model again."
    if not large:
        assert_same(fast.forest_)  # its bytes are in memory
        with pytest.raises(InvalidModelError, match=text):
            skforge.load(path)
        return
    for loaded in (fast, skforge.load(path)):
        answers(loaded)  # by the kernel
        for _ in range(2):
            with pytest.raises(InvalidModelError, match=text):
                loaded.forest_.left  # noqa: B018
        answers(loaded)


@pytest.mark.parametrize("how", ["off", "another release"])
def test_other_files_are_checked_whole(how, path, read, monkeypatch):
    if how == "off":
        monkeypatch.setenv("SKFORGE_CACHE", "off")
    else:
        monkeypatch.setattr(object_cache, "sources", lambda: "other code")
    skforge.load(path)
    assert read == ["forest"]


def test_another_manifest_is_another_file(path, read):
    skforge.save(plain(MODEL, n_jobs=2).fit(X), path)
    read.clear()
    skforge.load(path)
    assert read == ["forest"]
