"""LightGBM's text files: without lightgbm, of every version, damaged in many ways."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.frontends.lightgbm.model import _atof
from tests.answers_of import apply_transform
from tests.refusals import error_of
from tests.sklearn_rows import same_bits

DATA = Path(__file__).parents[1] / "data" / "lightgbm"
FILES = sorted(DATA.glob("*.txt"))
DAMAGED = "; the model is damaged, save it again."


def test_every_version_is_there():
    versions = {path.name.split("-")[0] for path in FILES}
    assert versions == {"2.0.5", "2.1.2", "2.3.1", "3.3.5", "4.1.0", "4.7.0"}
    assert len(FILES) == 40


@pytest.mark.sampled(20)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_predict_as_the_version_that_wrote_them(path):
    expected = np.load(DATA / f"{path.name.split('-')[0]}.npz")
    X = expected["X"]
    forest = load_forest(path)
    raw = reference_raw(forest, X)
    score = expected[f"{path.name}:raw"]
    same_bits(raw[:, 0] if score.ndim == 1 else raw, score)
    same_bits(apply_transform(forest, raw), expected[f"{path.name}:value"])
    leaves = forest.source_node[reference_leaves(forest, X)]
    np.testing.assert_array_equal(
        leaves, expected[f"{path.name}:leaf"].reshape(leaves.shape)
    )


@pytest.mark.parametrize("sizes", ["tree_sizes=", None])
def test_a_random_forest_without_trees_is_refused(sizes):
    """LightGBM divides the sum by the number of rounds, so it predicts NaN."""
    text = next(p for p in FILES if "average_output" in p.read_text()).read_text()
    header = re.sub(r"tree_sizes=.*\n", f"{sizes}\n" if sizes else "", text)
    empty = header[: header.index("Tree=0")] + "end of trees\n"
    with pytest.raises(UnsupportedModelError, match="random forest has no trees"):
        load_forest(empty)


@pytest.mark.parametrize("sizes", [True, False])
def test_trees_end_with_an_empty_line(sizes):
    """LightGBM reads lines up to the next empty one, across 'end of trees', too."""
    text = (DATA / "4.7.0-regression.txt").read_text()
    head, end, tail = text.partition("\nend of trees\n")
    head = head if sizes else re.sub(r"tree_sizes=.*\n", "", head)
    damaged = f"{head.rstrip()}{end}{tail}"
    with pytest.raises(InvalidModelError, match=r"Tree \d+ does not end with an empty"):
        load_forest(damaged)


@pytest.mark.parametrize("name", ["NYC_taxi", "mixed_categorical", "multiclass"])
def test_shared_models(shared_models, name):
    lgb = pytest.importorskip("lightgbm")
    path = shared_models / "lightgbm" / f"{name}.txt"
    booster = lgb.Booster(model_file=path)
    forest = load_forest(path)
    for rows in (
        draw_rows(forest, 500, seed=3, missing=0.1),
        np.random.default_rng(0).choice(
            [0, -0.0, 1e-36, -1e-35, np.nan, np.inf, -np.inf, 3.5, -0.5, 7],
            size=(500, forest.n_features),
        ),
    ):
        raw = reference_raw(forest, rows)
        score = booster.predict(rows, raw_score=True, num_threads=1)
        same_bits(raw, score.reshape(raw.shape))
        same_bits(apply_transform(forest, raw), booster.predict(rows, num_threads=1))
        leaves = booster.predict(rows, pred_leaf=True).reshape(len(rows), -1)
        found = forest.source_node[reference_leaves(forest, rows)]
        np.testing.assert_array_equal(found, leaves)


def read(name="4.7.0-categories.txt"):
    return (DATA / name).read_text()


def resized(text):
    """Announce the trees' new lengths, so that what was edited is reached."""
    blocks = re.findall(r"^Tree=.*?\n\n\n", text, re.MULTILINE | re.DOTALL)
    sizes = " ".join(str(len(block)) for block in blocks)
    return re.sub(r"tree_sizes=.*", f"tree_sizes={sizes}", text)


def replaced(pattern, value, name="4.7.0-categories.txt"):
    text, count = re.subn(pattern, value, read(name), count=1, flags=re.MULTILINE)
    assert count == 1
    return resized(text)


def test_text_and_file_and_line_endings_give_the_same_forest(tmp_path):
    text = read()
    expected = load_forest(DATA / "4.7.0-categories.txt").content_hash()
    assert load_forest(text).content_hash() == expected
    file = tmp_path / "windows.txt"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    assert load_forest(file).content_hash() == expected
    assert load_forest(file.read_bytes().decode()).content_hash() == expected


def test_feature_names_in_any_script():
    forest = load_forest(replaced("^feature_names=.*", "feature_names=größe 重さ c"))
    assert forest.feature_names == ("größe", "重さ", "c")


def test_covers_are_training_rows():
    forest = load_forest(DATA / "4.7.0-regression.txt")
    roots = forest.tree_offset[:-1]
    np.testing.assert_array_equal(forest.cover[roots], 120)
    inner = np.flatnonzero(forest.left >= 0)
    children = forest.cover[forest.left[inner]] + forest.cover[forest.right[inner]]
    np.testing.assert_array_equal(forest.cover[inner], children)
    assert len(load_forest(replaced("^leaf_count=.*\n", "")).cover) == 0


@pytest.mark.parametrize(
    ("pattern", "value", "message"),
    [
        ("^end of trees$", "", "The text ends before the line 'end of trees'"),
        ("^end of parameters$", "",
         "The text ends before the line 'end of parameters'"),
        ("^max_feature_idx=.*", "", "the header has no max_feature_idx"),
        ("^max_feature_idx=.*", "max_feature_idx=-3",
         "max_feature_idx = '-3' of the header is not a size"),
        ("^max_feature_idx=.*", "max_feature_idx=99999999999",
         "max_feature_idx = '99999999999' of the header is not a size"),
        ("^max_feature_idx=.*", "max_feature_idx=2147483000",
         "feature_names has 3 names for 2147483001 features"),
        ("^num_tree_per_iteration=1", "num_tree_per_iteration=2000000000",
         "num_tree_per_iteration is 2000000000 and num_class is 1"),
        ("^num_class=1\nnum_tree_per_iteration=1",
         "num_class=3\nnum_tree_per_iteration=3",
         "4 trees do not make whole rounds of 3 trees"),
        ("^objective=.*", "objective=binary sigmoid:x", "sigmoid is 'x'"),
        ("^objective=.*", "objective=multiclass num_class:4",
         "The objective 'multiclass' is for 4 outputs, not 1"),
        ("^num_cat=.*", "num_cat=0\nnum_cat=0", "num_cat is given twice in tree 0"),
        ("^shrinkage=.*", "shrinkage", "shrinkage has no value in tree 0"),
        ("^num_leaves=.*", "", "tree 0 has no num_leaves"),
        ("^num_leaves=.*", "num_leaves=0", "num_leaves = 0 of tree 0 is not a size"),
        ("^num_leaves=.*", "num_leaves=2000000000",
         "left_child of tree 0 has 3 numbers, not 1999999999"),
        ("^left_child=.*\n", "", "Tree 0 has no left_child"),
        ("^left_child=[-0-9]+", "left_child=3",
         "left_child[0] = 3 of tree 0 is outside -4..2"),
        ("^right_child=[-0-9]+", "right_child=-5",
         "right_child[0] = -5 of tree 0 is outside -4..2"),
        ("^left_child=[-0-9]+", "left_child=99999999999999999999999",
         "left_child holds something that is not a number"),
        ("^split_feature=[0-9]+", "split_feature=3",
         "split_feature[0] = 3 of tree 0 is outside 0..2"),
        ("^split_feature=[0-9]+", "split_feature=-1",
         "split_feature[0] = -1 of tree 0 is outside 0..2"),
        ("^decision_type=[0-9]+", "decision_type=12",
         "decision_type[0] = 12 of tree 0 is unknown"),
        ("^decision_type=[0-9]+", "decision_type=16",
         "decision_type[0] = 16 of tree 0 is unknown"),
        ("^leaf_value=[^ ]+", "leaf_value=1_0",
         "leaf_value holds something that is not a number"),
        ("^leaf_value=[^ ]+ ", "leaf_value=",
         "leaf_value of tree 0 has 3 numbers, not 4"),
        ("^cat_boundaries=0", "cat_boundaries=1",
         "cat_boundaries of tree 0 do not rise from 0"),
        ("^cat_threshold=[0-9]+", "cat_threshold=4294967296",
         "cat_threshold of tree 0 holds more than 32 bits"),
        ("^cat_threshold=[0-9]+", "cat_threshold=-1",
         "cat_threshold of tree 0 holds more than 32 bits"),
        ("^pandas_categorical:.*", "pandas_categorical:[[",
         "pandas_categorical is not JSON"),
        ("^pandas_categorical:.*", "pandas_categorical:3",
         "pandas_categorical is not a list of lists"),
    ],
)  # fmt: skip
def test_damaged_text(pattern, value, message):
    text = replaced(pattern, value)
    assert error_of(InvalidModelError, load_forest, text) == message + DAMAGED


def test_sets_that_are_not_there():
    text = read()
    at = text.index("decision_type=", text.index("Tree=0"))
    kinds = text[at : text.index("\n", at)].split("=")[1].split()
    node = [int(kind) & 1 for kind in kinds].index(1)
    start = text.index("threshold=", text.index("Tree=0"))
    stop = text.index("\n", start)
    values = text[start:stop].split("=")[1].split()
    for bad, shown in (("9", "9.0"), ("-1", "-1.0"), ("0.5", "0.5"), ("nan", "nan")):
        changed = [bad if i == node else v for i, v in enumerate(values)]
        line = f"threshold={' '.join(changed)}"
        n_sets = int(re.search(r"num_cat=(\d+)", text)[1])
        with pytest.raises(InvalidModelError) as info:
            load_forest(resized(text[:start] + line + text[stop:]))
        assert str(info.value) == (
            f"threshold[{node}] = {shown} of tree 0 is not one of its "
            f"{n_sets} sets of categories{DAMAGED}"
        )


@pytest.mark.parametrize(
    ("left", "right"),
    [("0 2 -2", "1 -3 -4"), ("1 2 1", "-1 -3 -4"), ("1 1 -2", "-1 -3 -4")],
)
def test_cycles_and_shared_children(left, right):
    text = re.sub(r"(?m)^left_child=.*", f"left_child={left}", read(), count=1)
    text = re.sub(r"(?m)^right_child=.*", f"right_child={right}", text, count=1)
    with pytest.raises(InvalidModelError, match="tree 0"):
        load_forest(resized(text))


@pytest.mark.parametrize("value", ["nan", "inf", "1e999"])
def test_numbers_that_are_none(value):
    with pytest.raises(InvalidModelError, match="is not finite"):
        load_forest(replaced("^leaf_value=[^ ]+", f"leaf_value={value}"))


VERSIONS = "but only v2, v3, v4 are supported."
CHANGES = "is unknown, which may change predictions, so the model cannot be compiled."
ITS = "so its predictions cannot be reproduced."


@pytest.mark.parametrize(
    ("pattern", "value", "message"),
    [
        ("^version=v4", "version=v9",
         f"The model has the format version 'v9', {VERSIONS}"),
        ("^version=v4\n", "", f"The model has the format version None, {VERSIONS}"),
        ("^label_index=0", "label_index=0\nmagic=1",
         f"The line 'magic=1' of the header {CHANGES}"),
        ("^shrinkage=.*", "shrinkage=1\nmagic=1",
         f"The line 'magic=1' of tree 0 {CHANGES}"),
        ("^objective=.*", "objective=magic",
         f"The objective 'magic' is unknown, {ITS}"),
        ("^objective=.*", "objective=poisson sqrt",
         f"The objective 'poisson' has the unknown option 'sqrt', {ITS}"),
    ],
)  # fmt: skip
def test_unknown_things_are_refused(pattern, value, message):
    text = replaced(pattern, value)
    assert error_of(UnsupportedModelError, load_forest, text) == message


def test_an_inserted_or_a_lost_character_is_noticed():
    text = read()
    at = text.index("leaf_value=") + len("leaf_value=")
    size = int(re.search(r"tree_sizes=(\d+)", text)[1])
    after = text.index("Tree=1")
    for changed, stands in (
        (text[:at] + "1" + text[at:], text[after - 1 : after + 19]),
        (text[:at] + text[at + 1 :], text[after + 1 : after + 21]),
    ):
        assert error_of(InvalidModelError, load_forest, changed) == (
            f"tree_sizes says that tree 1 starts at character {size} of the trees, "
            f"where {stands!r} stands{DAMAGED}"
        )
    for wrong in ("-1", "0", "1e3", "a"):
        with pytest.raises(InvalidModelError) as info:
            load_forest(re.sub("tree_sizes=[0-9]+", f"tree_sizes={wrong}", text))
        assert str(info.value) == (
            f"tree_sizes holds {wrong!r}, which is not a size{DAMAGED}"
        )
    for sizes in ("1 ", "999999999999999999 "):
        with pytest.raises(InvalidModelError, match="says that tree 1 starts"):
            load_forest(text.replace("tree_sizes=", f"tree_sizes={sizes}"))


def _edited():
    """Return texts edited by hand that LightGBM takes, and how many trees it reads."""
    text = read()
    head, *trees = re.split(
        "(?=^Tree=)", text.partition("end of trees")[0], flags=re.MULTILINE
    )
    tail = "end of trees" + text.partition("end of trees")[2]
    line = re.search("tree_sizes=(.*)\n", text)
    sizes = line[1].split()

    def built(chosen, sizes):
        announced = f"tree_sizes={' '.join(map(str, sizes))}\n"
        return head.replace(line[0], announced) + "".join(chosen) + tail

    skipping = [int(sizes[0]) + int(sizes[1]), *sizes[2:]]
    shorter = trees[-1].replace("shrinkage", "\nshrinkage")
    longer = re.sub("leaf_value=([^ ]+)", r"leaf_value=\g<1>0000", trees[0])
    assert longer != trees[0]
    without = head.replace(line[0], "")
    return {
        "one less announced": (built(trees, sizes[:-1]), 3),
        "none announced": (built(trees, []), 0),
        "one passed over": (built(trees, skipping), 3),
        "one taken out": (built(trees[1:], sizes[1:]), 3),
        "the last one longer": (built([*trees[1:], longer], [*sizes[1:], 1]), 4),
        "an empty line within": (built([*trees[:-1], shorter], sizes), 4),
        "other spaces": (built(trees, ["", *sizes, ""]), 4),
        "no sizes": (without + "".join(trees) + tail, 4),
        "no sizes, one taken out": (without + "".join(trees[:1] + trees[2:]) + tail, 3),
        "no sizes, lines end in two": (
            (without + "".join(trees) + tail).replace("\n", "\r\n"),
            4,
        ),
        "sizes of lines that end in two": (
            built(
                trees,
                [int(s) + t.count("\n") for s, t in zip(sizes, trees, strict=True)],
            ).replace("\n", "\r\n"),
            4,
        ),
    }


@pytest.mark.parametrize("case", _edited())
def test_sizes_of_trees_mean_what_they_mean_to_lightgbm(case, tmp_path):
    lgb = pytest.importorskip("lightgbm")
    text, n_trees = _edited()[case]
    path = tmp_path / "edited.txt"
    path.write_bytes(text.encode())
    booster = lgb.Booster(model_file=path)
    forest = load_forest(path)
    assert booster.num_trees() == forest.n_trees == n_trees
    rows = draw_rows(load_forest(read()), 300, seed=5, missing=0.1)
    score = booster.predict(rows, raw_score=True, num_threads=1)
    raw = reference_raw(forest, rows)
    same_bits(raw, score.reshape(raw.shape))


def test_what_stands_between_trees_of_unknown_size_is_refused():
    text = re.sub("tree_sizes=.*\n", "", read())
    with pytest.raises(InvalidModelError) as info:
        load_forest(text.replace("Tree=2\n", "a note\n\nTree=2\n"))
    assert str(info.value) == f"'a note' stands where a tree must start{DAMAGED}"


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("a forest\nof trees\n")
    assert error_of(InvalidModelError, load_forest, path) == (
        "notes.txt: The text does not begin with the line 'tree', so it is not a "
        "LightGBM model; save the model with Booster.save_model of XGBoost or "
        "LightGBM, save_model of CatBoost, as ONNX, or with skforge.save."
    )


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "model.txt"
    path.write_bytes(b"tree\n\xff\xfe")
    assert error_of(InvalidModelError, load_forest, path) == (
        "model.txt: The text is not UTF-8 (invalid start byte at byte 5); it is "
        "damaged or not a LightGBM model, so save the model again."
    )


@pytest.mark.parametrize("name", ["2.0.5-binary", "2.1.2-categories"])
def test_early_texts_end_with_their_importances(name):
    """LightGBM before 2.2 writes no 'end of trees'; before 2.0.12 no sizes either."""
    text = read(f"{name}.txt")
    expected = load_forest(text).content_hash()
    end = "feature importances:\n"
    last = text.index(end) + len(end)
    assert load_forest(text[:last]).content_hash() == expected
    later = text.replace("tree\n", "tree\nversion=v3\n").replace("version=v2\n", "")
    for damage in (text.replace(end, ""), later):
        assert error_of(InvalidModelError, load_forest, damage) == (
            f"The text ends before the line 'end of trees'{DAMAGED}"
        )


@pytest.mark.parametrize("sizes", [True, False])
def test_an_early_text_without_one_of_its_trees_is_damaged(sizes):
    text = read("2.1.2-multiclass.txt")
    text = text if sizes else re.sub("tree_sizes=.*\n", "", text)
    second = text.index("Tree=1\n"), text.index("Tree=2\n")
    with pytest.raises(InvalidModelError) as info:
        load_forest(text[: second[0]] + text[second[1] :])
    wanted = "tree_sizes says that tree" if sizes else "11 trees do not make whole"
    assert str(info.value).startswith(wanted)


def test_announced_sizes_allocate_nothing():
    text = replaced("^num_leaves=.*", "num_leaves=2147483647")
    tracemalloc.start()
    with pytest.raises(InvalidModelError):
        load_forest(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("0.123457", 0.123457),
        ("7.66337", 7.6633700000000005),  # 7 + 0.66337, rounded twice
        ("1.64863e-05", 1.6486300000000002e-05),
        ("2e3", 2000.0),
        ("1e60", 1.0000000000000001e60),
        ("", np.nan),
        ("x", np.nan),
        ("1e", np.nan),
    ],
)
def test_numbers_as_lightgbm_reads_them(text, value):
    np.testing.assert_equal(_atof(text), value)


NAMES = (
    *("regression_l2", "l2", "mean_squared_error", "mse", "l2_root", "rmse"),
    *("root_mean_squared_error", "l1", "mean_absolute_error", "mae", "xentropy"),
    *("mean_absolute_percentage_error", "xentlambda", "xendcg", "xe_ndcg"),
    *("xe_ndcg_mart", "xendcg_mart", "none", "null", "na"),
)


@pytest.mark.parametrize("name", NAMES)
def test_other_names_of_objectives(name):
    lgb = pytest.importorskip("lightgbm")
    text = (
        DATA / next(p.name for p in FILES if p.name.startswith("4.7.0"))
    ).read_text()
    text = re.sub(r"(?m)^objective=.*$", f"objective={name}", text)
    forest = load_forest(lgb.Booster(model_str=text))
    X = draw_rows(forest, 300, 0)
    expected = lgb.Booster(model_str=text).predict(X)
    same_bits(apply_transform(forest, reference_raw(forest, X)), expected)


def test_other_names_of_objectives_take_no_options(tmp_path):
    text = next(p for p in FILES if p.name.startswith("4.7.0")).read_text()
    path = tmp_path / "model.txt"
    path.write_text(re.sub(r"(?m)^objective=.*$", "objective=rmse sqrt", text))
    with pytest.raises(UnsupportedModelError, match="objective 'rmse' is unknown"):
        load_forest(path)
