"""XGBoost's old binary files: of 0.72 to 3.0, in what others wrote, and damaged."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import tracemalloc
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

import skforge
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    SkforgeError,
    UnsupportedModelError,
)
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.frontends.xgboost.model import forest_from_document
from skforge.frontends.xgboost.old_binary import document_of
from tests.answers_of import apply_transform
from tests.old_xgboost import old_bytes
from tests.refusals import error_of
from tests.sklearn_rows import same_bits

DATA = Path(__file__).parents[1] / "data" / "xgboost"
VERSIONS = ["0.72.1", "0.82", "0.90", "1.0.2", "1.2.1", "1.7.6", "2.1.4", "3.0.5"]
#: XGBoost 3.0 itself cannot open them: it misses a parameter of training.
NO_ANSWERS = {f"{version}-gamma.model" for version in ("1.0.2", "1.2.1", "1.7.6")}
HEADER, NAMES = 136, 8 + 15 + 8 + 6  # of binary:logistic and gbtree


@cache
def files():
    with ZipFile(DATA / "old_binary.zip") as held:
        return {name: held.read(name) for name in held.namelist()}


@cache
def answers():
    with np.load(DATA / "old_binary.npz") as held:
        return dict(held)


def changed(data, at, form, *values):
    """Return bytes with other numbers at a place."""
    held = bytearray(data)
    struct.pack_into(f"<{form}", held, at, *values)
    return bytes(held)


def test_every_version_is_there():
    assert len(files()) == 155
    assert {name.partition("-")[0] for name in files()} == {*VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
def test_files_predict_as_the_last_xgboost_that_reads_them(version):
    known = answers()
    X = known["X"]
    names = {n for n in files() if n.startswith(f"{version}-") and "gblinear" not in n}
    assert len(names) >= 16
    for name in names - NO_ANSWERS:
        forest = load_forest(files()[name])
        raw = reference_raw(forest, X)
        # a wrapper's own call is inplace_predict
        wrapper = b"scikit_learn" in files()[name]
        margin = known[f"{name}:{'in-place' if wrapper else 'output_margin'}"]
        same_bits(raw[:, 0] if margin.ndim == 1 else raw, margin)
        same_bits(apply_transform(forest, raw), known[f"{name}:value"])
        leaves = forest.source_node[reference_leaves(forest, X)]
        expected = known[f"{name}:pred_leaf"].reshape(leaves.shape)
        np.testing.assert_array_equal(leaves, expected, name)


def test_files_that_xgboost_writes_and_no_later_one_reads():
    X = answers()["X"]
    for name in NO_ANSWERS:
        forest = load_forest(files()[name])
        start = np.log(np.float32(0.7))
        np.testing.assert_allclose(forest.base, start, rtol=1e-6)
        trees = forest_from_document(document_of(files()[name]))
        assert trees.content_hash() == forest.content_hash()
        assert (apply_transform(forest, reference_raw(forest, X)) > 0).all()


def test_wrappers_stop_at_their_best_round():
    """Boosters of files do not, though they have the attribute, too."""
    data = files()["0.90-forest.model"]
    assert len(load_forest(data).tree_output) == 6
    assert len(load_forest(data, iteration_range=(0, 2)).tree_output) == 2
    data = files()["1.7.6-wrapper.model"]
    assert len(load_forest(data).tree_output) == 4
    attribute = b"\x0e" + bytes(7) + b"best_iteration\x01" + bytes(7)
    assert data.count(attribute + b"3") == 1
    stopped = data.replace(attribute + b"3", attribute + b"1")
    assert len(load_forest(stopped).tree_output) == 2


def test_attributes_are_kept_and_what_was_hidden_in_them_is_not():
    for version in VERSIONS:
        learner = document_of(files()[f"{version}-forest.model"])["learner"]
        known = learner["attributes"]
        assert known.pop("best_ntree_limit", "6") == "6"
        assert known == {"best_iteration": "1", "note": "h\u00e9"}
        assert learner["objective"] == {
            "name": "binary:logistic",
            "reg_loss_param": {"scale_pos_weight": "1"},
        }
        learner = document_of(files()[f"{version}-poisson.model"])["learner"]
        (step,) = learner["objective"]["poisson_regression_param"].values()
        # 1.2 does not save it, and of 0.72 there is only the tail
        assert float(step) == pytest.approx(
            0.7 if version in ("0.72.1", "1.2.1") else 0.4
        )


def test_what_others_write_around_the_model(tmp_path):
    old, new = files()["0.90-softprob.model"], files()["1.7.6-softprob.model"]
    names = ["features", "label", "prediction"]
    columns = b"".join(struct.pack(">H", len(n)) + n.encode() for n in names)
    regression = b"\0\5_reg_" + columns
    classes = b"\0\5_cls_" + columns + b"\0\3raw" + struct.pack(">i", 3)
    for data in (old, new, new[4:]):
        forest = load_forest(data).content_hash()
        for around in (
            b"binf" + data.removeprefix(b"binf"),
            b"bs64\t" + base64.b64encode(data) + b"\n",
            b"bs64\r\n" + base64.encodebytes(data),
            b"CONFIG-offset:" + struct.pack("<q", len(data)) + data + b'{"learner": 1}',
            struct.pack(">i", 3) + data,
            regression + data,
            classes + struct.pack(">i", -1) + data,
            classes + struct.pack(">i3d", 3, 0.2, 0.3, 0.5) + data,
        ):
            assert load_forest(around).content_hash() == forest
            path = tmp_path / "XGBoostClassificationModel"
            path.write_bytes(around)
            assert load_forest(path).content_hash() == forest


def test_numbers_that_only_some_versions_have():
    """Vectors of leaves of 0.3x, and objectives of a device of 0.7x."""
    data = files()["0.90-logistic.model"]
    forest = load_forest(data)
    tree = HEADER + NAMES + 160
    (n_nodes,) = struct.unpack_from("<i", data, tree + 4)
    end = tree + 148 + 36 * n_nodes
    vector = struct.pack(f"<Q{n_nodes}f", n_nodes, *range(n_nodes))
    longer = changed(data[:end] + vector + data[end:], tree + 20, "i", 1)
    assert load_forest(longer).content_hash() == forest.content_hash()
    name = struct.pack("<Q", 19) + b"gpu:binary:logistic"
    on_gpu = data[:HEADER] + name + data[HEADER + 23 :]
    assert load_forest(on_gpu).content_hash() == forest.content_hash()


def test_the_tests_writer_writes_what_xgboost_wrote():
    """Nodes and statistics have its bytes; the rest is what the reader makes of it."""
    for name, content in files().items():
        if "gblinear" in name:
            continue
        document = document_of(content)
        version = tuple(map(int, name.split("-")[0].split(".")[:2]))
        new = version >= (1, 0)
        again = old_bytes(document, version if new else (0, 90))
        assert plain(document_of(again)) == plain(document), name
        assert trees_of(again) == trees_of(content), name


def trees_of(data):
    """Return nodes and statistics, but for counts of leaves and sides of lost nodes."""
    at, parts = re.search(rb"gbtree|dart", data).end() + 160, []
    (count,) = struct.unpack_from("<i", data, at - 160)
    for _ in range(count):
        (n,) = struct.unpack_from("<i", data, at + 4)
        at += 148
        nodes = np.frombuffer(data, "<i4", 5 * n, at).reshape(n, 5).copy()
        nodes[:, 0] &= 2**31 - 1
        known = np.frombuffer(data, "<i4", 4 * n, at + 20 * n).reshape(n, 4)
        parts += [nodes.tolist(), known[:, :3].tolist()]
        at += 36 * n
    return parts, data[at : at + 4 * count]


def plain(value):
    """Return a document as text, without what training alone needs."""
    value = {**value["learner"]}
    value["objective"] = value["objective"]["name"]
    return json.dumps(value, default=lambda array: array.tolist())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("version", VERSIONS)
def test_todays_xgboost_predicts_the_same_bits_from_converted_files(version, tmp_path):
    xgb = pytest.importorskip("xgboost")
    known = answers()
    rows = xgb.DMatrix(known["X"])
    new = tmp_path / "new.json"
    for name, content in files().items():
        if not name.startswith(f"{version}-") or "gblinear" in name:
            continue
        skforge.convert(content, new)
        model = xgb.Booster({"nthread": 1}, model_file=new)
        same = load_forest(content)
        assert load_forest(new).content_hash() == same.content_hash()
        margin = model.predict(rows, output_margin=True)
        raw = reference_raw(same, known["X"])
        same_bits(raw[:, 0] if margin.ndim == 1 else raw, margin)
        if name in NO_ANSWERS:
            continue
        same_bits(model.predict(rows), known[f"{name}:value"])
        leaves, expected = model.predict(rows, pred_leaf=True), f"{name}:pred_leaf"
        np.testing.assert_array_equal(
            leaves.reshape(known[expected].shape), known[expected]
        )
        if "wrapper" in name:
            wrapper = xgb.XGBClassifier()
            wrapper.load_model(new)
            same_bits(wrapper.predict_proba(known["X"])[:, 1], known[f"{name}:value"])


def test_converting_says_what_it_cannot_write(tmp_path):
    content = files()["0.90-logistic.model"]
    old = tmp_path / "old.model"
    old.write_bytes(content)
    new = io.BytesIO()
    with old.open("rb") as file:
        skforge.convert(file, new)
    assert load_forest(new.getvalue()).n_trees == 3
    skforge.convert(str(old), tmp_path / "new.json")
    assert (tmp_path / "new.json").read_bytes() == new.getvalue()
    assert error_of(InvalidInputError, skforge.convert, old, tmp_path / "new.ubj") == (
        f"{tmp_path / 'new.ubj'} does not end in .json, and XGBoost tells formats by "
        "the names of files."
    )
    old.write_bytes(content[:-1])
    (tmp_path / "new.json").unlink()
    for source, name in ((old, old), (content[:-1], "This bytes object")):
        said = error_of(
            InvalidModelError, skforge.convert, source, tmp_path / "new.json"
        )
        assert said.startswith(f"{name}: Byte {len(content) - 12} of")
    old.write_bytes(files()["0.90-gblinear.model"])
    said = error_of(UnsupportedModelError, skforge.convert, old, tmp_path / "new.json")
    assert said.startswith(f"{old}: The booster 'gblinear' is not")
    assert [*tmp_path.iterdir()] == [old]


NOT_OPENED = (
    "skforge does not open pickles, because a pickle can run any code; load it "
    "yourself and pass the model."
)


def test_models_inside_pickles(tmp_path):
    """Bytes are found there, and nothing is opened; 1.7 pickled UBJSON."""
    with ZipFile(DATA / "old_pickles.zip") as held:
        pickles = {name: held.read(name) for name in held.namelist()}
    assert len(pickles) == 10
    path = tmp_path / "model.pkl"
    for name, content in pickles.items():
        path.write_bytes(content)
        if name.startswith("1.7"):
            assert error_of(UnsupportedModelError, load_forest, path) == (
                "model.pkl: This pickle holds no model in XGBoost's old binary format. "
                f"{NOT_OPENED}"
            )
            continue
        expected = load_forest(files()[f"{name.split('-')[0]}-wrapper.model"])
        assert load_forest(path).content_hash() == expected.content_hash(), name
        skforge.convert(path, tmp_path / "new.json")
        new = load_forest(tmp_path / "new.json")
        assert new.content_hash() == expected.content_hash(), name
    content = pickles["0.90-wrapper.pickle"]
    nan = b"G" + struct.pack(">d", np.nan)
    assert content.count(nan) == 1
    path.write_bytes(content.replace(nan, b"G" + struct.pack(">d", -999.0)))
    assert load_forest(path).missing_value == -999
    said = error_of(UnsupportedModelError, skforge.convert, path, tmp_path / "new.json")
    assert said == (
        f"{path}: The pickle says that -999.0 is a missing value, and JSON has no "
        "place for it; use CompiledForest(path), which keeps it."
    )
    path.write_bytes(content.replace(nan, b"\x88"))  # True
    unknown = "model.pkl: This pickle does not say plainly which value is missing. "
    assert error_of(UnsupportedModelError, load_forest, path) == unknown + NOT_OPENED
    path.write_bytes(content.replace(b"missing", b"messing"))
    assert error_of(UnsupportedModelError, load_forest, path) == unknown + NOT_OPENED
    head = content[: content.index(b"xgboost.sklearn") + 16]
    model = files()["0.90-linear.model"]
    model = struct.pack("<I", len(model)) + model
    path.write_bytes(head + b"\x94" + (b"B" + model) * 2)
    assert error_of(UnsupportedModelError, load_forest, path) == (
        "model.pkl: This pickle holds 2 models in XGBoost's old binary format. "
        f"{NOT_OPENED}"
    )


def said_of(data, tmp_path, error=InvalidModelError):
    path = tmp_path / "old.model"
    path.write_bytes(data)
    return error_of(error, load_forest, path)


def test_other_boosters_are_refused(tmp_path):
    for version in VERSIONS:
        data = files()[f"{version}-gblinear.model"]
        assert said_of(data, tmp_path, UnsupportedModelError) == (
            "old.model: The booster 'gblinear' is not a tree ensemble that can be "
            "compiled; train with booster='gbtree' or 'dart'."
        )


def test_damage_is_named(tmp_path):
    data = b"binf" + files()["0.90-logistic.model"]
    size, header, trees = len(data), 4 + HEADER, 4 + HEADER + NAMES
    tree = trees + 160
    where = "of XGBoost's old binary format: "
    cut = "should follow, but the file ends before; it is damaged or cut off, so copy "
    cut += "it again."
    damaged = "; the file is damaged, so copy it again."
    most = 2**31 - 1
    outputs = "the outputs of trees of 12 bytes"
    padding = "The model in base64 cannot be decoded (Incorrect padding); the file is "
    for bad, at, what in (
        (data[:-1], size - 12, f"{outputs} {cut}"),
        (
            data + b"\0",
            size,
            f"the model ends here, but the file has 1 more byte{damaged}",
        ),
        (changed(data, trees, "i", most), tree, f"{most} trees {cut}"),
        (changed(data, trees, "i", -1), tree, f"the number of trees is -1{damaged}"),
        (
            *(changed(data, tree + 4, "i", most), tree + 148),
            f"{most} nodes of tree 0 {cut}",
        ),
        (
            *(changed(data, tree + 4, "i", 0), tree + 148),
            f"tree 0 has no nodes{damaged}",
        ),
        (
            *(changed(data, header + 8, "B", 255), header + 23),
            f"the objective's name is not UTF-8{damaged}",
        ),
        (
            *(changed(data, header, "Q", 2**63), header + 8),
            f"the objective's name of {2**63} bytes {cut}",
        ),
        (data[:4], 4, f"the header of 136 bytes {cut}"),
        (
            *(b"CONFIG-offset:" + struct.pack("<Q", 2**62) + data, 22),
            f"a model of {2**62} bytes {cut}",
        ),
        (b"\0\5_reg_\0\1", 9, f"the header of 136 bytes {cut}"),
    ):
        expected = f"old.model: Byte {at} of {len(bad)} {where}{what}"
        assert said_of(bad, tmp_path) == expected
    said = said_of(changed(data, tree + 20, "i", 1), tmp_path)
    assert " values of tree 0 should follow" in said
    assert said_of(b"bs64\t" + base64.b64encode(data)[:-5], tmp_path) == (
        f"old.model: {padding}damaged or cut off, so copy it again."
    )
    assert said_of(changed(data, tree, "i", 2), tmp_path, UnsupportedModelError) == (
        "old.model: Tree 0 has 2 roots, and XGBoost reads trees of one root only; "
        "train the model again."
    )
    new = files()["3.0.5-logistic.model"]
    wide = changed(new, tree + 20, "i", 2)
    assert said_of(wide, tmp_path, UnsupportedModelError) == (
        "old.model: The leaves of tree 0 have 2 values, which no XGBoost wrote in this "
        "format; save the model as JSON or UBJSON."
    )


def test_lengths_allocate_nothing():
    """Each number but those of most nodes becomes huge, or negative, in turn."""
    data = files()["0.82-poisson.model"]
    trees = HEADER + NAMES - len("binary:logistic") + len("count:poisson")
    numbers = (range(0, 36, 4), range(trees, trees + 28, 4))
    nodes = (range(trees + 160, trees + 184, 4), range(trees + 308, trees + 348, 4))
    ends = (range(HEADER, trees), range(len(data) - 40, len(data) - 3))
    data = b"binf" + data
    refused = 0
    load_forest(data)  # which imports
    with suppress(SkforgeError):
        load_forest(changed(data, 4, "i", -1))
    tracemalloc.start()
    for at in chain(*numbers, *nodes, *ends):
        for value in (2**31 - 1, -1):
            try:
                load_forest(changed(data, 4 + at, "i", value))
            except SkforgeError:
                refused += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21, peak
    assert refused > 100
