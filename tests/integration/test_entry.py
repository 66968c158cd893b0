"""Compiled entries: the ordinary path's bits for what they take, None for the rest."""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import re
import sys
import threading
import time
import types
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.target import Target
from skforge.engine.cpu import jit, programs, threads
from skforge.engine.cpu.workers import SEMAPHORES
from skforge.engine.entry import entry as entries
from skforge.engine.entry import mappings
from skforge.exceptions import InvalidInputError
from skforge.exporters import api, library
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.modules.compiled import CompiledModule, compile_forest
from skforge.outputs import answers
from skforge.outputs.library import numpy_loop
from skforge.outputs.steps import (
    MAX_SCRATCH,
    MAX_WRITTEN,
    OUTPUTS,
    expit_is_libm,
    inlier_length,
    steps_in_code,
)
from skforge.runtime.entries import KernelTable, as_method, retire
from skforge.schedule.schedule import Schedule
from tests.comparing import in_child
from tests.exactness.forests import drawn
from tests.noted import run_threads
from tests.outputs_of import outputs_of
from tests.row_layouts import converted, strided

SIZES = (1, 2, 63, 64, 65, 600)
DOUBLE = ("float64", "float64")
WIDTH = 5


def forest_of(
    n_outputs: int = 1,
    transform: str = "identity",
    row_dtype: str = "float32",
    sum_dtype: str = "float32",
    n_trees: int = 10,
    n_features: int = WIDTH,
    seed: int = 0,
    constants: dict[str, Any] | None = None,
    **fields: Any,
) -> Forest:
    """Return trees of two levels; their leaves are numbered in the order of trees."""
    how: dict[str, Any] = {"seed": seed, "n_features": n_features, "dtype": row_dtype}
    made = drawn(n_trees, 2, shape="full", sums=sum_dtype, n_outputs=n_outputs, **how)
    is_leaf, random = made.left < 0, np.random.default_rng(seed)
    values = random.standard_normal((made.n_leaves, 1)).astype(sum_dtype)
    task = "regression"
    if transform not in ("exp", "signed_square", "log1p_exp"):
        task = "binary" if n_outputs == 1 else "multiclass"
    parts: dict[str, Any] = {"task": task, "source": "xgboost", "leaf_value": values}
    parts |= {"leaf": np.where(is_leaf, np.cumsum(is_leaf) - 1, -1), **fields}
    task, source = parts["task"], parts["source"]
    outputs = outputs_of(transform, task, source, n_outputs, **(constants or {}))
    return replace(made, **{"outputs": outputs, **parts}).validate()


def rows_of(forest: Forest, n: int, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n, forest.n_features)).astype(forest.input_dtype)
    rows[random.random(rows.shape) < 0.1] = np.nan
    return rows


def wanted(module: CompiledModule, output: str, rows: np.ndarray) -> np.ndarray:
    """Return what the ordinary path gives."""
    raw = module.predict_raw(rows, n_jobs=1)  # n_jobs: never through an entry
    if output == "raw":
        return raw
    return np.asarray(answers.of_scores(module.forest.answers, output, raw))


def assert_equal(found: Any, expected: np.ndarray) -> None:
    assert type(found) is np.ndarray
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.ascontiguousarray(found).tobytes() == expected.tobytes()
    assert found.flags.owndata and found.flags.writeable


def compiled(forest: Forest, **options: Any) -> CompiledModule:
    """Return a module with all kernels; three ranges, compiled in milliseconds."""
    fours, eights = (Schedule().tile("batch", "b0", "b1", n) for n in (4, 8))
    ranges = {(1, 1): Schedule(), (2, 64): fours}
    ranges[65, None] = eights.reorder("b0", "tree", "b1")
    module = compile_forest(forest, **{"schedule": ranges, **options})
    module.compile_all()
    return module


# ---------------------------------------------------------------- the same bits

#: Numbers of outputs with transforms, precisions of rows and of sums.
KINDS = [
    (n_outputs, transform, row_dtype, sum_dtype)
    for transform, counts in {
        **{"identity": (1, 3), "sigmoid": (1, 2, 3, 10), "exp": (1, 3)},
        **{"hinge": (1,), "softmax": (2, 3, 10), "expectiles": (2, 3)},
    }.items()
    for n_outputs in counts
    for row_dtype, sum_dtype in (("float32",) * 2, ("float32", "float64"), DOUBLE)
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
def test_every_output_has_the_ordinary_bits(kind):
    number = KINDS.index(kind)
    divisor = (1, 10)[number % 2]
    check_all_outputs(forest_of(*kind, seed=number, divisor=divisor))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS[::4], ids=lambda kind: "-".join(map(str, kind)))
def test_predict_of_a_module_has_an_entry_after_few_calls(kind, monkeypatch):
    forest = forest_of(*kind)
    module, rows = compile_forest(forest), rows_of(forest, 9)
    answers = [module.predict(rows) for _ in range(4)]
    entry = module._entries["transformed"]
    assert "raw" not in module._entries
    if entry is not None:
        monkeypatch.setattr(module, "_raw", None)  # a fifth call needs no kernel
        answers.append(module.predict(rows))
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0], strict=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("divisor", [1, 7])
@pytest.mark.parametrize(
    "transform, n_outputs, task",
    [
        ("logistic", 1, "binary"),
        ("logistic", 3, "multiclass"),
        ("softmax", 3, "multiclass"),
        *((name, 1, "regression") for name in ("identity", "signed_square")),
        ("log1p_exp", 1, "regression"),
    ],
)
def test_lightgbms_outputs(transform, n_outputs, task, divisor):
    how = {"source": "lightgbm", "task": task}
    constants = {"parameter": 1.7, "divisor": divisor}
    forest = forest_of(n_outputs, transform, *DOUBLE, constants=constants, **how)
    check_all_outputs(forest)


#: What scikit-learn's models have, with its kinds of outputs and their numbers.
PROBABLE = {"raw", "transformed", "probabilities", "labels"}
CHOSEN = PROBABLE | {"decision"}


OF_SKLEARN = {
    ("gb_logistic", 1): CHOSEN - {"transformed"},
    ("gb_exponential", 1): CHOSEN - {"transformed"},
    ("hist_logistic", 1): CHOSEN - {"transformed"},
    **{("identity", n): PROBABLE for n in (2, 3)},  # votes of forests
    **{("samme", n): CHOSEN for n in (2, 3, 7)},  # and of AdaBoost
}


def of_sklearn(transform, n_outputs, *dtypes, **fields):
    fields = {"source": "sklearn", **fields}
    return forest_of(n_outputs, transform, *(dtypes or DOUBLE), **fields)


@pytest.mark.parametrize("transform, n_outputs", OF_SKLEARN)
def test_outputs_of_scikit_learn(transform, n_outputs):
    there = OF_SKLEARN[transform, n_outputs]
    if n_outputs == 1 and not expit_is_libm():  # no entry for probabilities then
        assert sys.platform == "win32"
        pytest.skip("SciPy's expit is not of the C library here")
    how = {"constants": {"parameter": 3.7}} if transform == "samme" else {}
    if transform == "samme" and n_outputs == 2:
        how["task"] = "binary"
    if transform == "identity":
        how["divisor"] = 10
    dtypes = ("float32", "float64") if n_outputs > 1 else DOUBLE
    forest = of_sklearn(transform, n_outputs, *dtypes, **how)
    assert check_all_outputs(forest, (1, 2, 5, 64, 65, 200)) == there


@pytest.mark.parametrize("n_outputs", [3, 7, 8, 9, 26, 140])
@pytest.mark.parametrize("transform", ["gb_softmax", "hist_softmax"])
def test_multiclass_boosting_of_scikit_learn(transform, n_outputs):
    """NumPy adds up eight values of a row and more in another order."""
    forest = of_sklearn(transform, n_outputs, n_trees=2 * n_outputs)
    sizes = (1, 2, 3, 7, 2000 // n_outputs)
    assert check_all_outputs(forest, sizes) == CHOSEN
    random = np.random.default_rng(n_outputs)
    for scale in (1e-310, 30, 400, 1e5, 1e290):
        leaves = random.standard_normal(forest.leaf_value.shape) * scale
        check_all_outputs(replace(forest, leaf_value=leaves), sizes)


@pytest.mark.parametrize("n_outputs", [3, 8, 10, 140])
def test_the_softmax_objective_of_xgboost(n_outputs):
    """The answer is a class, and probabilities are SciPy's, of float32."""
    forest = forest_of(n_outputs, "argmax", n_trees=2 * n_outputs)
    random, shape = np.random.default_rng(n_outputs), forest.leaf_value.shape
    sizes = (1, 2, 3, 7, 2000 // n_outputs)
    for leaves in (
        forest.leaf_value,
        random.integers(0, 2, shape),  # ties
        random.standard_normal(shape) * 60,
        random.standard_normal(shape) * 1e-40,
        random.standard_normal(shape) * 1e36,
    ):
        changed = replace(forest, leaf_value=leaves.astype(np.float32))
        changed = replace(changed, base=np.zeros(n_outputs, np.float32))
        assert check_all_outputs(changed, sizes) == PROBABLE
    far = random.choice([np.inf, -np.inf, np.nan, 0.0], shape).astype(np.float32)
    module = compiled(replace(forest, leaf_value=far))
    for output in ("transformed", "labels"):
        rows = rows_of(forest, 12)
        with np.errstate(all="ignore"):
            assert_equal(module.entry(output)(rows), wanted(module, output, rows))


@pytest.mark.parametrize("n_outputs", [2, 3, 7, 64])
@pytest.mark.parametrize("sum_dtype", ["float32", "float64"])
def test_quantiles_are_sorted(n_outputs, sum_dtype):
    how = {"base": np.full(n_outputs, -0.0, sum_dtype), "task": "regression"}
    dtypes = "float32", sum_dtype
    forest = forest_of(n_outputs, "sorted", *dtypes, n_trees=2 * n_outputs, **how)
    random, shape = np.random.default_rng(n_outputs), forest.leaf_value.shape
    odd = random.choice([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan], shape)
    for leaves in (forest.leaf_value, odd, random.integers(-2, 3, shape)):
        changed = replace(forest, leaf_value=leaves.astype(sum_dtype))
        with np.errstate(all="ignore"):
            there = check_all_outputs(changed, (1, 2, 9, 30))
        assert there == {"raw", "transformed"}


def test_exponentials_of_numpy():
    forest = of_sklearn("numpy_exp", 1, task="regression")
    random = np.random.default_rng(0)
    for scale in (0, 1e-310, 1, 60):
        leaves = random.standard_normal(forest.leaf_value.shape) * scale
        forest = replace(forest, leaf_value=leaves)
        assert check_all_outputs(forest) == {"raw", "transformed"}


@pytest.mark.parametrize(
    "transform, n_outputs, leaves, warning",
    [
        ("numpy_exp", 1, 800.0, "overflow encountered in exp"),
        ("numpy_exp", 1, np.nan, ""),
        ("hist_softmax", 3, np.inf, "invalid value encountered in subtract"),
        ("gb_softmax", 3, (-1.5e308, 1.5e308), "overflow encountered in subtract"),
        ("samme", 3, np.inf, "invalid value encountered in subtract"),
        ("argmax", 3, np.inf, "invalid value encountered in subtract"),
        ("argmax", 3, (-3e38, 3e38), "overflow encountered in subtract"),
    ],
)
def test_scores_of_which_numpy_warns_are_declined(
    transform, n_outputs, leaves, warning
):
    boosted = transform == "argmax"
    sums = "float32" if boosted else "float64"
    how = {"source": "xgboost" if boosted else "sklearn", "n_trees": n_outputs}
    how["task"] = "multiclass" if n_outputs > 1 else "regression"
    base = np.zeros(n_outputs, sums)
    forest = forest_of(n_outputs, transform, "float64", sums, base=base, **how)
    shape = forest.leaf_value.shape
    far = np.resize(leaves, shape) if np.ndim(leaves) else np.full(shape, leaves)
    far = far.astype(sums)
    output = "transformed" if n_outputs == 1 else "probabilities"
    module = compiled(replace(forest, leaf_value=far))
    entry, rows = module.entry(output), rows_of(forest, 2)
    for _ in range(3):
        assert entry(rows) is None and entry(rows[:1]) is None
    assert [*entry.__self__.counts] == [0, 0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wanted(module, output, rows)
    assert {str(w.message) for w in caught} == ({warning} if warning else set())


#: Beyond them, CatBoost's exponential is clipped, or 0 or infinite.
LIMITS = [-708.39641853226408, 709.78271289338397, 709.78272569338397]
EDGES = np.array([0.0, 1.0, -1.0, 1e300, -1e300, 1e-310, 354.9, *LIMITS])
EDGES = np.concatenate([EDGES, *(np.nextafter(LIMITS, way) for way in (-1e9, 1e9))])


@pytest.mark.parametrize(
    "function, n_outputs",
    [("fast_exp", 1), ("uncertainty", 2), *(("fast_softmax", n) for n in range(2, 10))],
)
def test_catboosts_exponentials(function, n_outputs):
    """The last one to three values of an array have rules of their own."""
    random, several = np.random.default_rng(n_outputs), function == "fast_softmax"
    task = "multiclass" if several else "regression"
    answers = {"labels": "column", "probabilities": "values"} if several else {}
    how = {"source": "catboost", "task": task, "constants": answers}
    how |= {"n_trees": n_outputs * 3, "base": np.zeros(n_outputs)}
    forest = forest_of(n_outputs, function, "float32", "float64", **how)
    there = {"raw", "transformed"} | {*answers}
    sizes = (1, 2, 3, 4, 5, 6, 7, 65, 700)
    assert check_all_outputs(forest, sizes) == there
    shape = forest.leaf_value.shape
    alone = np.arange(shape[0])[:, np.newaxis] < 4 * n_outputs  # one tree's
    # differences of infinities are NaNs of either sign
    edges = EDGES if several else np.append(EDGES, [np.inf, -np.inf])
    for leaves in (
        random.normal(0, 400, shape),
        random.choice(edges, shape),
        np.where(alone, random.choice(edges, shape), 0.0),
        np.nextafter(random.choice(LIMITS, shape), random.normal(0, 1e4, shape)),
    ):
        with np.errstate(all="ignore"):
            check_all_outputs(replace(forest, leaf_value=leaves), sizes)


def test_a_raw_score_of_zero_is_cut_as_each_source_cuts_it():
    base, leaves = np.zeros(1), np.zeros((40, 1))
    of_one = {"gb_logistic": 1, "gb_exponential": 1, "hist_logistic": 0, "sigmoid": 0}
    for transform, label in of_one.items():
        source = "xgboost" if transform == "sigmoid" else "sklearn"
        forest = of_sklearn(transform, 1, source=source)
        module = compiled(replace(forest, base=base, leaf_value=leaves))
        assert module.entry("labels")(np.zeros((1, WIDTH))).tolist() == [label]
        assert wanted(module, "labels", np.zeros((1, WIDTH))).tolist() == [label]


def test_labels_of_several_yes_or_no_questions_are_float64():
    forest = forest_of(3, "sigmoid", task="multilabel")
    module = compiled(forest)
    found = module.entry("labels")(rows_of(forest, 4))
    assert found.dtype == np.float64 and found.shape == (4, 3)
    check_all_outputs(forest)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "values",
    [(88.7, 89.0), (-88.8, -88.7), (np.inf, 1.0), (-np.inf, -np.inf), (3e38, 3e38)],
)
def test_extreme_scores(values):
    """Sums that overflow, are infinite or NaN go through transforms as ever."""
    kinds = (1, "sigmoid"), (1, "exp"), (2, "softmax"), (2, "expectiles")
    for n_outputs, transform in kinds:
        forest = forest_of(n_outputs, transform)
        leaves = np.resize(np.float32(values), (40, 1))
        with np.errstate(all="ignore"):
            check_all_outputs(replace(forest, leaf_value=leaves), sizes=(2, 65))
    forest = forest_of(3, "softmax", base=np.float32([-np.inf, np.inf, 0.0]))
    with np.errstate(all="ignore"):
        check_all_outputs(forest, sizes=(2,))


def check_all_outputs(forest: Forest, sizes: tuple[int, ...] = SIZES) -> set[str]:
    """Compare all entries with the ordinary path; return those there are."""
    module = compiled(forest)
    other = {"float32": np.float64, "float64": np.float32}[forest.input_dtype.name]
    there = set()
    for output in OUTPUTS:
        entry = module.entry(output)
        assert (entry is not None) == (steps_in_code(forest, output) is not None)
        if entry is None:
            continue
        there.add(output)
        for n in sizes:
            rows = rows_of(forest, n, seed=n)
            found = entry(rows)
            assert_equal(found, wanted(module, output, rows))
            cast = entry(rows.astype(other))
            if n * forest.n_features > MAX_SCRATCH:
                assert cast is None
            else:
                same = wanted(module, output, rows.astype(other))
                assert_equal(cast, same)
    return there


def test_outputs_a_forest_does_not_have_are_none():
    regressor = compiled(forest_of(1, "exp"))
    assert regressor.entry("labels") is None
    assert regressor.entry("probabilities") is None
    assert compiled(forest_of(3, "softmax")).entry("decision") is None
    for kind in ("gb_softmax", "hist_softmax", "samme"):
        several = replace(forest_of(3, kind, source="sklearn"), task="multiclass")
        assert compiled(several).entry("transformed") is None
        assert compiled(several).entry("labels") is not None
    marked = compiled(replace(forest_of(1), missing_value=-999.0))
    assert marked.entry("raw") is None
    sums_of_float32 = compiled(forest_of(1, "fast_exp"))  # of CatBoost
    assert sums_of_float32.entry("transformed") is None


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("proba",), f"output must be one of {', '.join(OUTPUTS)}. Got 'proba'"),
        (("raw", "inf"), "refused must be one of nothing, infinite, not_finite. Got"),
    ],
)
def test_unknown_arguments_are_refused(arguments, said):
    with pytest.raises(InvalidInputError) as error:
        compile_forest(forest_of()).entry(*arguments)
    assert str(error.value).startswith(said)
    assert str(error.value).endswith(f"Got {arguments[-1]!r} instead.")


# ---------------------------------------------------------------- ONNX

POSTS = ("none", "logistic", "softmax", "softmax_zero", "probit")
#: Layouts with numbers of outputs and base values, nan for an output without leaves.
LAYOUTS: list[tuple[str, str, tuple[float, ...]]] = [
    ("target", "regression", (0.25,)),
    ("columns", "regression", (0.0, -1.5, 3.0)),
    ("columns", "regression", (0.5, np.nan, 0.0)),
    ("columns", "multiclass", (0.0, 0.0, 0.0)),
    ("columns", "multiclass", (np.nan, 0.1, -0.1, 2.0)),
    ("columns", "binary", (0.1, -0.1)),
    ("columns", "binary", (0.1, np.nan)),
    ("one", "binary", (0.125,)),
    ("mirrored", "binary", (-0.125,)),
]


def of_onnx(name, task, offsets, *dtypes, **fields):
    fields = {"constants": {"offsets": offsets}, **fields}
    how = {"source": "onnx", "task": task, **fields}
    return forest_of(len(offsets), f"onnx:{name}", *dtypes, **how)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "row_dtype, sum_dtype, dtype",
    [
        ("float32", "float32", "float32"),
        ("float64", "float64", "float32"),
        ("float64", "float64", "float64"),
        ("float32", "float64", "float32"),
    ],
)
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_onnxs_post_transforms(number, post, row_dtype, sum_dtype, dtype):
    layout, task, offsets = LAYOUTS[number]
    for parameter, divisor in ((0.5, 1), (-0.5, 3)):
        constants = {"parameter": parameter, "offsets": offsets}
        how = {"seed": number, "divisor": divisor, "constants": constants}
        name = f"{layout}:{post}:{dtype}"
        forest = of_onnx(name, task, offsets, row_dtype, sum_dtype, **how)
        with np.errstate(all="ignore"):
            there = check_all_outputs(forest, sizes=(1, 65))
        answers = {"transformed", "probabilities", "labels"}
        if task == "regression":
            answers -= {"probabilities", "labels"}
        if post == "probit":
            answers -= {"transformed", "probabilities"}
        assert there == {"raw"} | answers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("post", POSTS)
def test_extreme_scores_of_onnx(post):
    values = np.float32([np.inf, -np.inf, 0.0, -0.0, 1e-7, 3e38, -3e38, 100.0])
    for seed, (layout, task, offsets) in enumerate(LAYOUTS):
        how = {"seed": seed, "n_trees": max(2, len(offsets))}
        forest = of_onnx(f"{layout}:{post}:float32", task, offsets, **how)
        leaves = np.random.default_rng(seed).choice(values, forest.leaf_value.shape)
        with np.errstate(all="ignore"):
            check_all_outputs(replace(forest, leaf_value=leaves), sizes=(1, 65))


def test_onnx_with_many_classes_or_none_is_left_to_the_ordinary_path():
    for offsets in ((0.0,) * (MAX_WRITTEN + 1), (np.nan, np.nan)):
        name, n_trees = "columns:none:float32", len(offsets)
        forest = of_onnx(name, "multiclass", offsets, n_trees=n_trees)
        assert steps_in_code(forest, "labels") is None
        assert steps_in_code(forest, "raw") is not None


# ---------------------------------------------------------------- scikit-learn's own


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cutoff", [-0.3, -0.5, -0.8])
@pytest.mark.parametrize("scale", [0.5, 13.0, 1024.7])
def test_outliers_are_told_by_the_length_of_their_paths(scale, cutoff):
    how = {"constants": {"parameter": scale, "cutoff": cutoff}, "task": "outlier"}
    how |= {"base": np.zeros(1), "n_trees": 1}
    forest = of_sklearn("path_length", 1, "float32", "float64", **how)
    cut = inlier_length(forest.outputs)
    assert cut is not None and steps_in_code(forest, "transformed") is not None
    near = cut + np.spacing(cut) * np.array([-9e9, -2000, -1, 0, 1, 2000, 9e9])
    for first in range(4):
        leaves = near[first : first + 4, np.newaxis]
        there = check_all_outputs(replace(forest, leaf_value=leaves), sizes=(1, 65))
        assert numpy_loop("power") is not None  # or it has no entry for scores here
        assert there == {"raw", "transformed", "scores", "decision"}


def test_cutoffs_that_no_length_decides_have_no_entry():
    forest = forest_of(1, sum_dtype="float64", base=np.zeros(1))
    lengths = np.abs(forest.leaf_value)  # of paths: none is negative
    forest = replace(forest, source="sklearn", task="outlier", leaf_value=lengths)
    for scale, cutoff in ((0.0, -0.5), (10.0, 0.5), (10.0, -1e-30)):
        outputs = OutputSpec("path_length", scale, cutoff=cutoff, decision="paths")
        assert steps_in_code(replace(forest, outputs=outputs), "transformed") is None
    everyone = OutputSpec("path_length", 10.0, cutoff=-1.5, decision="paths")
    check_all_outputs(replace(forest, outputs=everyone), sizes=(1, 65))


def test_models_of_one_kind_share_the_code_of_entries(monkeypatch, tmp_path):
    """Columns, batch ranges and sizes of trees are data."""
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))  # no other test's objects
    made, make = [], jit.object_of
    monkeypatch.setattr(jit, "object_of", lambda *given: made.append(1) or make(*given))
    programs._made.cache_clear()
    first = compiled(forest_of(3))
    other = compiled(forest_of(3, n_trees=900, n_features=37), schedule=Schedule())
    for output in ("raw", "labels"):
        for limit, most in ((1, 600), (0, 64)):
            for module in (first, other):
                module.limit_entries(most)
                made.clear()
                entry = module.entry(output, "infinite")
                rows = rows_of(module.forest, 64)
                assert len(made) == (limit if module is first else 0)
                assert_equal(entry(rows), wanted(module, output, rows))
                assert entry(rows_of(module.forest, most + 1)) is None
                assert entry.__self__.sizes.method_rows <= most
                assert entry(rows[:, 1:]) is None
                rows[63, -1] = np.inf
                assert entry(rows) is None


def test_a_module_gets_an_entry_after_a_few_calls_of_up_to_1024_rows():
    for rows, has in ((1024, True), (1025, False)):
        module = compiled(forest_of())
        X = rows_of(module.forest, rows)
        answers = [module.predict_raw(X) for _ in range(4)]
        assert ("raw" in module._entries) is has
        for answer in answers:
            np.testing.assert_array_equal(answer, module.predict_raw(X, n_jobs=1))


# ---------------------------------------------------------------- batch ranges


def test_a_size_is_declined_until_its_kernel_is_compiled():
    schedule = Schedule().tile("batch", "b0", "b1", 4)
    module = compile_forest(forest_of(), {(1, 1): Schedule(), (2, 64): schedule})
    entry = module.entry()
    one, some = rows_of(module.forest, 1), rows_of(module.forest, 5)
    assert entry(one) is None and entry(some) is None
    expected = module.predict_raw(some, n_jobs=1)
    assert_equal(entry(some), expected)
    assert entry(one) is None
    assert module.compile_all() >= 0
    assert_equal(entry(one), module.predict_raw(one, n_jobs=1))


def test_sizes_between_ranges_take_the_range_below():
    """Reduction "fast" makes the schedule that ran visible in the bits."""
    forest = forest_of(n_trees=64, seed=3)
    split = Schedule().tile("tree", "t0", "t1", 8).reorder("t1", "t0", "batch")
    table = {(2, 3): Schedule(), (10, 20): split, (40, None): Schedule()}
    module = compiled(forest, schedule=table, reduction="fast")
    entry = module.entry()
    rows = rows_of(forest, 60)
    different = 0
    for n in (1, 2, 3, 4, 9, 10, 20, 21, 39, 40, 60):
        assert_equal(entry(rows[:n]), module.predict_raw(rows[:n], n_jobs=1))
        plain = compile_forest(forest, Schedule(), reduction="fast")
        different += not np.array_equal(entry(rows[:n]), plain.predict_raw(rows[:n]))
    assert different  # else the schedules cannot be told apart


def test_a_table_changes_kernel_and_slots_together():
    table = KernelTable(2)
    first, second = object(), object()

    def words():
        return list((ctypes.c_int64 * 6).from_address(table.address))

    table.fill(1, 8, b"a" * 8, first)
    before = words()
    assert before[:4] == [0, 0, 0, 8] and before[5] == 8
    assert ctypes.string_at(before[4], 8) == b"a" * 8
    table.fill(1, 16, b"b" * 16, second)
    assert words()[3::2] == [16, 16]
    assert ctypes.string_at(before[4], 8) == b"a" * 8  # an entry may be running
    table.fill(1, 8, b"a" * 8, first)
    assert words() == before
    table.clear(1)
    assert words() == [0] * 6


def jobs_of_workers():
    """Return how many parallel loops the workers were offered so far."""
    return ctypes.c_int64.from_address(threads._workers._pool).value >> 32


@pytest.mark.skipif(not SEMAPHORES, reason="Python's threads share them here")
def test_batches_worth_several_threads_are_shared():
    blocks = Schedule().tile("batch", "b0", "b1", 16).parallel("b0")
    forest = forest_of(n_trees=500)
    module = compile_forest(forest, {(1, 9): Schedule(), (10, None): blocks})
    module.compile_all()
    serial, threaded = module.entry(), module.entry(n_jobs=2)
    rows = rows_of(forest, 200)
    assert threaded(rows) is None  # no plan yet, and perhaps no workers
    module.predict_raw(rows, n_jobs=2)
    for n, shared in ((200, 1), (10, 0), (9, 0)):
        before = jobs_of_workers()
        assert_equal(threaded(rows[:n]), serial(rows[:n]))
        assert jobs_of_workers() == before + shared
    with threadpool_limits(1, user_api="openmp"):
        before = jobs_of_workers()
        assert_equal(threaded(rows), serial(rows))
        assert jobs_of_workers() == before or threads.thread_limit() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_entry_without_workers_declines():
    forest = forest_of(n_trees=500)
    blocks = Schedule().tile("batch", "b0", "b1", 16).parallel("b0")
    module = compile_forest(forest, blocks, n_jobs=2).warm_up()
    rows = rows_of(forest, 200)
    expected = module.predict_raw(rows)

    def in_the_child():
        declined = module._entries["raw"](rows) is None
        same = np.array_equal(module.predict_raw(rows), expected)
        by_entry = np.array_equal(module._entries["raw"](rows), expected)
        return declined and same and by_entry

    assert in_child(in_the_child) == 0


def test_huge_batches_are_left_to_the_ordinary_path():
    module = compiled(forest_of(n_trees=1))
    most = entries.MAX_VALUES // WIDTH
    entry = module.entry()
    rows = np.zeros((most + 1, WIDTH), np.float32)
    assert entry(rows) is None
    assert_equal(entry(rows[:most]), module.predict_raw(rows[:most], n_jobs=1))


# ---------------------------------------------------------------- what is declined

MODULE = compiled(forest_of(1, "sigmoid"))
ROWS = rows_of(MODULE.forest, 12)
#: Outputs of all but isolation forests.
OF_SCORES = ("raw", "transformed", "probabilities", "labels")


class Rows(np.ndarray):
    """A subclass that may mean anything."""


BETWEEN = np.zeros((2, WIDTH), [("x", "f4"), ("y", "u2")])
DECLINED: dict[str, Callable[[], Any]] = {
    **converted(ROWS),
    "complex": lambda: ROWS.astype(np.complex64),
    "int32": lambda: np.ones(ROWS.shape, np.int32),
    "big-endian double": lambda: ROWS.astype(">f8"),
    "strings": lambda: ROWS.astype("U8"),
    "dates": lambda: np.zeros(ROWS.shape, "M8[s]"),
    "records": lambda: np.zeros(ROWS.shape, [("x", "f4")]),
    "many rows of Fortran order": lambda: np.asfortranarray(np.tile(ROWS, (40, 1))),
    "columns too large for float32": lambda: np.full((1, 2 * WIDTH), 1e39)[:, ::2],
    "columns between two numbers": lambda: BETWEEN["x"],
    "0 rows": lambda: ROWS[:0],
    "1-D": lambda: ROWS[0],
    "0-D": lambda: np.array(1.0, np.float32),
    "3-D": lambda: ROWS[np.newaxis],
    "too narrow": lambda: ROWS[:, :-1],
    "too wide": lambda: np.zeros((2, WIDTH + 1), np.float32),
    "no columns": lambda: ROWS[:, :0],
    "too large for float32": lambda: np.full((1, WIDTH), 1e39),
    "float64 infinity": lambda: np.full((1, WIDTH), -np.inf),
    "list": lambda: ROWS.tolist(),
    "None": lambda: None,
    "number": lambda: 1.0,
    "NumPy scalar": lambda: np.float32(1.0),
    "matrix": lambda: np.asmatrix(ROWS),
    "masked array": lambda: np.ma.masked_array(ROWS),
    "subclass": lambda: ROWS.view(Rows),
    "memoryview": lambda: memoryview(ROWS),
    "bytes": lambda: ROWS.tobytes(),
    "data frame": lambda: pytest.importorskip("pandas").DataFrame(ROWS),
    "the type itself": lambda: np.ndarray,
}


@pytest.mark.parametrize("name", DECLINED)
def test_declined_without_a_trace(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # np.matrix
        given = DECLINED[name]()
    entry = MODULE.entry("raw")
    before, nones = sys.getrefcount(given), sys.getrefcount(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(1000):
            assert entry(given) is None
    assert sys.exc_info() == (None, None, None)
    assert abs(sys.getrefcount(given) - before) < 100
    assert abs(sys.getrefcount(None) - nones) < 100


def test_it_takes_one_argument():
    entry = MODULE.entry()
    for arguments in ((), (ROWS, ROWS)):
        with pytest.raises(TypeError):
            entry(*arguments)
    with pytest.raises(TypeError):
        entry(X=ROWS)


TAKEN: dict[str, Callable[[], np.ndarray]] = {
    **strided(ROWS),
    "every third": lambda: ROWS[::3],
    "one column repeated": lambda: np.broadcast_to(ROWS[:, :1], ROWS.shape),
    "float64, Fortran order": lambda: np.asfortranarray(ROWS.astype(np.float64)),
    "float64, columns backwards": lambda: ROWS.astype(np.float64)[::-1, ::-1],
    "a row of a table by columns": lambda: np.asfortranarray(ROWS)[7:8],
    "one row of Fortran order": lambda: np.asfortranarray(ROWS[:1]),
    "one row of a longer stride": lambda: ROWS[3:4],
    "float64": lambda: ROWS.astype(np.float64) + 1e-12,
    "float64 backwards": lambda: ROWS.astype(np.float64)[::-2],
    "float64 between two floats": lambda: np.full((1, WIDTH), 1 + 2**-24 + 2**-40),
    "denormal": lambda: np.full((1, WIDTH), 1e-42, np.float32),
    "denormal only as float32": lambda: np.full((1, WIDTH), 1e-42),
    "zero as float32": lambda: np.full((1, WIDTH), -1e-60),
    "infinite": lambda: np.full((2, WIDTH), -np.inf, np.float32),
    "not a number": lambda: np.full((2, WIDTH), np.nan),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken_as_the_ordinary_path_takes_it(name):
    rows = TAKEN[name]()
    kept = rows.tobytes()
    for output in OF_SCORES:
        assert_equal(MODULE.entry(output)(rows), wanted(MODULE, output, rows))
    assert rows.tobytes() == kept


# ---------------------------------------------------------------- refused values


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("refused", ["infinite", "not_finite"])
@pytest.mark.parametrize("n_features", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40])
def test_a_refused_value_is_found_in_every_column_of_every_row(
    refused, dtype, n_features
):
    forest = forest_of(1, row_dtype=dtype, n_features=n_features, n_trees=2)
    module = compiled(forest, schedule=Schedule())
    entry, free = module.entry("raw", refused), module.entry("raw")
    wide = np.full((3, n_features + 2), np.inf, dtype)  # beside the rows: no matter
    rows = wide[:, 1:-1]
    limits = np.finfo(dtype)
    rows[:] = np.resize([limits.max, -limits.max, limits.tiny, -0.0, 1.0], rows.shape)
    good = module.predict_raw(rows, n_jobs=1)
    assert_equal(entry(rows), good)
    bad = (np.inf, -np.inf, np.nan, -np.nan)
    for row in range(3):
        for column in range(n_features):
            kept = rows[row, column]
            for value in bad:
                rows[row, column] = value
                declined = refused == "not_finite" or np.isinf(value)
                assert (entry(rows) is None) == declined, (row, column, value)
                assert free(rows) is not None
            rows[row, column] = kept
    assert_equal(entry(rows), good)


@pytest.mark.parametrize("order", ["C", "F"])
def test_refused_values_are_found_after_the_cast(order):
    entry = compiled(forest_of()).entry("raw", "not_finite")
    rows = np.zeros((2, WIDTH), order=order)
    assert entry(rows) is not None
    for value in (np.nan, np.inf, 1e39, -3.5e38):
        rows[1, 4] = value
        assert entry(rows) is None
    rows[1, 4] = 3.4e38
    assert entry(rows) is not None


# ---------------------------------------------------------------- memory and threads


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(
    sys.platform != "linux", reason="memory is read from /proc"
)


@needs_proc
@pytest.mark.parametrize("output", OF_SCORES)
def test_nothing_is_leaked_by_calls(output):
    entry = MODULE.entry(output, "infinite")
    rows = ROWS[:8]
    double, bad = rows.astype(np.float64), np.full((1, WIDTH), np.inf, np.float32)
    for _ in range(1000):
        entry(rows), entry(double), entry(bad), entry(rows.copy())
    gc.collect()
    before, own = _resident(), [sys.getrefcount(x) for x in (rows, double, bad, entry)]
    nones = sys.getrefcount(None)
    kinds = sys.getrefcount(np.dtype(entry(rows).dtype))
    for _ in range(100_000):
        entry(rows)
    for _ in range(20_000):
        entry(double), entry(bad), entry(rows.copy()), entry(None)
    assert [sys.getrefcount(x) for x in (rows, double, bad, entry)] == own
    assert abs(sys.getrefcount(None) - nones) < 100
    assert abs(sys.getrefcount(np.dtype(entry(rows).dtype)) - kinds) < 100
    assert _resident() - before < 1 << 20


def test_an_entry_outlives_its_module():
    module = compiled(forest_of(seed=9))
    rows = rows_of(module.forest, 3)
    expected = module.predict_raw(rows, n_jobs=1)
    entry = module.entry()
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    for _ in range(1000):
        assert_equal(entry(rows), expected)


@needs_proc
def test_modules_and_entries_are_freed():
    forest = forest_of(n_trees=2000)

    def once() -> None:
        module = compiled(forest, schedule=Schedule())
        kernel = weakref.ref(module.kernels.kernel(0))
        entry = module.entry("labels", "infinite")
        assert entry(np.zeros((1, WIDTH), np.float32)) is not None
        holder = weakref.ref(entry.__self__)
        del module, entry
        gc.collect()
        assert kernel() is None and holder() is None

    for _ in range(3):
        once()
    before = _resident()
    for _ in range(10):
        once()
    assert _resident() - before < 2 << 20


def test_other_threads_run_during_long_work():
    module = compiled(forest_of(n_trees=1000), schedule=Schedule())
    entry = module.entry()
    rows = rows_of(module.forest, 20_000)
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)  # lets others go on, as nothing else here does

    def ticked() -> bool:
        before = ticks[0]
        entry(rows)
        return ticks[0] > before

    ticking = threading.Thread(target=tick)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e6)  # Python itself takes no thread's turn from it
    ticking.start()
    try:
        assert any(ticked() for _ in range(100))
    finally:
        stop.set()
        sys.setswitchinterval(usual)
        ticking.join()


def test_sixteen_threads():
    module = compiled(forest_of(3, "softmax", n_trees=300))
    rows = rows_of(module.forest, 200)
    found = {
        output: module.entry(output) for output in ("raw", "transformed", "labels")
    }
    expected = {output: wanted(module, output, rows) for output in found}

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(200):
            first = int(random.integers(199))
            part = slice(first, int(random.integers(first + 1, 201)))
            for output, entry in found.items():
                np.testing.assert_array_equal(entry(rows[part]), expected[output][part])

    run_threads(work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads of other tests
def test_a_forked_child_calls_and_makes_entries():
    entry, expected = MODULE.entry(), MODULE.predict_raw(ROWS, n_jobs=1)

    def in_the_child():
        made = MODULE.entry("labels")
        return np.array_equal(entry(ROWS), expected) and len(made(ROWS)) == len(ROWS)

    assert in_child(in_the_child) == 0


# ---------------------------------------------------------------- labels and methods


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize(
    "classes",
    [
        np.array([0, 1, 2]),
        np.array([-1, 1, 7]),
        np.array([2**62, -(2**62), 5]),
        np.array(["no", "yes", "perhaps"]),
        np.array(["no", 1, None], dtype=object),
        np.array([0.5, 1.5, 2.5]),
        np.array([False, True, True]),
        np.array([3, 4, 5], np.int8),
        np.arange(entries.MAX_LABELS + 1),
    ],
    ids=lambda classes: f"{classes.dtype}-{len(classes)}-{classes[-1]}",
)
def test_labels_instead_of_their_places(classes, n_outputs):
    module = compiled(forest_of(n_outputs, "sigmoid" if n_outputs == 1 else "softmax"))
    entry = module.entry("labels", classes=classes)
    rows = rows_of(module.forest, 50)
    places = wanted(module, "labels", rows)
    assert len(np.unique(places)) > 1
    for part in (slice(0, 1), slice(None)):
        found = entry(rows[part])
        assert found.dtype == classes.dtype
        assert found.tolist() == classes[places[part]].tolist()
    before = sys.getrefcount(classes)
    for _ in range(1000):
        entry(rows)
    assert abs(sys.getrefcount(classes) - before) < 10
    assert entry(rows[:, :2]) is None


class _Owner: ...


def _answer(owner: Any, X: Any, **params: Any) -> Any:
    """Say what came."""
    return owner, X, params


def test_a_method_answers_its_owner_and_asks_its_function_for_the_rest():
    owner, other, entry = _Owner(), _Owner(), compiled(forest_of()).entry()
    method = as_method(entry, owner, _answer)
    bound = types.MethodType(method, owner)
    assert bound.__name__ == "_answer" and bound.__doc__ == "Say what came."
    assert str(inspect.signature(bound)) == "(X, **params)"
    assert inspect.ismethod(bound) and bound.__self__ is owner
    assert_equal(bound(ROWS), entry(ROWS))
    wrong = ROWS[:, :2]
    assert bound(wrong)[:2] == (owner, wrong) and bound(wrong)[2] == {}
    assert bound(X=ROWS)[1] is ROWS
    assert bound(ROWS, most=3)[2] == {"most": 3}
    assert types.MethodType(method, other)(ROWS)[0] is other
    for arguments in ((), (ROWS, ROWS)):
        with pytest.raises(TypeError, match="_answer"):
            bound(*arguments)
    many = np.zeros((10**6, WIDTH), np.float32)[:200_000]
    assert entry(many) is not None
    assert bound(many)[1] is many  # another number of threads may be asked for
    retire(entry)
    assert method(owner, ROWS)[0] is owner
    assert entry(ROWS) is not None


def test_a_method_raises_what_its_function_raises_and_leaks_nothing():
    def refuse(owner: Any, X: Any) -> Any:
        raise KeyError(owner)

    owner = _Owner()
    entry = compiled(forest_of()).entry()
    method = as_method(entry, owner, refuse)
    wrong = ROWS[:, :2]
    things = owner, wrong, ROWS, refuse, method
    kept = [sys.getrefcount(thing) for thing in things]
    for _ in range(1000):
        with pytest.raises(KeyError):
            method(owner, wrong)
        method(owner, ROWS)
    assert [sys.getrefcount(thing) for thing in things] == kept
    del things
    holder = weakref.ref(entry.__self__)
    del entry, method
    gc.collect()
    assert holder() is None


# ------------------------------------------------------------ pointers


def pointers_in_loops(text: str) -> list[str]:
    """Return the conversions between addresses and integers in loops of LLVM's text."""
    found = []
    for function in re.findall(r"^define .*?^}", text, re.MULTILINE | re.DOTALL):
        blocks, name = defaultdict(list), ""
        for line in function.split("\n"):
            label = re.match(r'([-\w$."]+):', line)
            name = label[1] if label else name
            blocks[name].append(line)
        targets = {
            name: set(re.findall(r'label %([-\w$."]+)', "\n".join(lines)))
            for name, lines in blocks.items()
        }
        for name, lines in blocks.items():
            reached: set[str] = set()
            while more := {t for n in reached or {name} for t in targets[n]} - reached:
                reached |= more
            if name in reached:
                found += [line for line in lines if re.search("= (ptr|int)to", line)]
    return found


def test_loops_make_no_addresses_of_integers(monkeypatch, tmp_path):
    """LLVM 22 may forget what such an address points to, when it unrolls a loop."""
    texts = []

    def emit(*what):
        texts.append(emit_llvm(*what))
        return texts[-1]

    monkeypatch.setenv("SKFORGE_CACHE", "off")
    monkeypatch.setattr(jit, "emit_llvm", emit)
    monkeypatch.setattr(library, "emit_llvm", emit)
    for forest in (forest_of(3, "softmax", seed=7), forest_of(1, "sigmoid", seed=7)):
        module = compiled(forest)
        for output in ("raw", "transformed", "labels", "probabilities"):
            entry = module.entry(output)
            if entry is not None:
                rows = rows_of(forest, 3).astype(np.float64)
                assert_equal(entry(rows), wanted(module, output, rows))
        if sys.platform != "win32":
            api.export(forest, tmp_path / str(forest.n_outputs))
    assert len(texts) > 20
    assert sum("getelementptr" in text for text in texts) > 20
    assert [line for text in texts for line in pointers_in_loops(text)] == []
    # Objects of Python arrive as integers, and come from no buffer.
    read = pointers_in_loops(emit_llvm(mappings._routines()[0], Target.host()))
    assert len(read) == 4 and not [line for line in read if "= ptrtoint" in line]
