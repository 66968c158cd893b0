"""ONNX graphs with operators before the trees, as converters make of pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from skforge import InvalidInputError, UnsupportedModelError, load_forest
from skforge.exceptions import InvalidModelError
from skforge.forest.reference import draw_rows, reference_raw
from skforge.frontends.onnx.operators import GraphNode, operator_of
from skforge.frontends.onnx.symbols import Tensor, cells_of
from skforge.frontends.pipeline.columns import Column
from skforge.rows.readers import reader_of
from tests.answers_of import apply_transform
from tests.comparing import refusal
from tests.onnx_models import (
    MODES,
    RandomTrees,
    assert_same_bits,
    check,
    make_model,
    onnx,
    regressor,
    run,
)

pytest.importorskip("onnxruntime")

ML = "ai.onnx.ml"
ORDERED = MODES[:4]  # comparisons that do not ask for equal numbers
ADVICE = (
    "so it cannot become part of the trees; if the model was converted from a "
    "scikit-learn pipeline, give skforge the pipeline, or convert its last step alone."
)


def node(op: str, inputs: str, output: str = "steps", **attributes: Any) -> Any:
    kinds = "Scaler Imputer OneHotEncoder LabelEncoder FeatureVectorizer Normalizer"
    domain = ML if op in (*kinds.split(), "ArrayFeatureExtractor") else ""
    name = attributes.pop("name", "")
    return onnx.helper.make_node(
        op, inputs.split(), output.split(), name, domain=domain, **attributes
    )


def constant(name: str, values: Any) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(values), name)


def model_of(
    *before: Any, width: int = 4, constants: Any = (), seed: int = 0, **how: Any
) -> Any:
    modes = how.pop("modes", ORDERED)
    trees = RandomTrees(seed, n_trees=20, n_features=width, modes=modes)
    return make_model(
        "TreeEnsembleRegressor",
        regressor(trees),
        how.pop("n_features", 4),
        before=before,
        initializers=[constant(name, values) for name, values in constants],
        **how,
    )


def rows_near(forest: Any, dtype: str = "float32", n: int = 600) -> Any:
    """Return rows at thresholds and beside them, with all that is odd."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(n, forest.n_features)).astype(dtype) * 3
    cuts = forest.threshold[np.isfinite(forest.threshold)].astype(dtype)
    ways = np.array([-np.inf, 0, np.inf], dtype)
    with np.errstate(all="ignore"):
        for column in rows.T:
            near = random.random(n) < 0.6
            cut = random.choice(cuts, near.sum())
            way = random.choice(ways, near.sum())
            column[near] = np.where(way == 0, cut, np.nextafter(cut, way))
            whole = random.random(n) < 0.2
            column[whole] = np.round(column[whole])
            odd = random.random(n) < 0.1
            ends = np.finfo(dtype).max, np.finfo(dtype).tiny
            values = [np.nan, np.inf, -np.inf, 0.0, -0.0, *ends, -ends[0], 2.0**63]
            column[odd] = random.choice(np.array(values, dtype), odd.sum())
    return rows


OFFSETS = [0.5, -0.25, 1e-3, 7.0]
FOUR = np.float32([0.3, -2.0, 5.0, 1e3])
#: The nodes before the trees, constants, the columns that they make, and the rows.
STEPS: dict[str, tuple[Any, ...]] = {
    "Scaler": ([node("Scaler", "X", offset=OFFSETS, scale=[0.3, -2.0, 5.0, 1e3])], []),
    "Scaler of one": ([node("Scaler", "X", offset=[0.1], scale=[0.7])], []),
    "Imputer": ([node("Imputer", "X", imputed_value_floats=OFFSETS,
                      replaced_value_float=float("nan"))], []),
    "both": ([node("Imputer", "X", "i", imputed_value_floats=OFFSETS,
                   replaced_value_float=float("nan")),
              node("Scaler", "i", offset=OFFSETS, scale=[0.3, 2.0, 5.0, 7.0])], []),
    "Mul": ([node("Mul", "X c")], [("c", FOUR)]),
    "Add first": ([node("Add", "c X")], [("c", FOUR[None])]),
    "Sub": ([node("Sub", "c X")], [("c", np.float32(0.1))]),
    "Div": ([node("Div", "X c")], [("c", np.float32([3]))]),
    "Clip": ([node("Mul", "X c", "m"), node("Clip", "m low high")],
             [("c", FOUR), ("low", np.float32(0)), ("high", np.float32(1))]),
    "columns": ([node("ArrayFeatureExtractor", "X i", "a"),
                 node("Gather", "X j", "b", axis=1),
                 node("Slice", "X starts ends axes", "s"),
                 node("Concat", "a b s", axis=-1)],
                [("i", [3, 0]), ("j", [2]), ("starts", [1]), ("ends", [4]),
                 ("axes", [1])], 6),
    "split": ([node("Split", "X sizes", "a b", axis=1),
               node("Unsqueeze", "a axes", "u"), node("Squeeze", "u axes", "v"),
               node("Flatten", "b", "f"), node("Reshape", "f shape", "r"),
               node("Identity", "r", "r2"), node("Concat", "r2 v", axis=1)],
              [("sizes", [1, 3]), ("axes", [2]), ("shape", [-1, 3])]),
    "union": ([node("Scaler", "X", "a", offset=OFFSETS, scale=[1.0, 2.0, 3.0, 4.0]),
               node("Mul", "X c", "b"), node("Concat", "a b", axis=1)],
              [("c", FOUR)], 8),
    "FeatureVectorizer": ([node("FeatureVectorizer", "X", inputdimensions=[4])], []),
    "constant node": ([onnx.helper.make_node(
        "Constant", [], ["c"], value=constant("", FOUR)), node("Mul", "X c")], []),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_operators_fold_with_the_bits_of_onnxruntime(name):
    before, constants, *width = STEPS[name]
    model = model_of(*before, constants=constants, width=(*width, 4)[0])
    forest = load_forest(model)
    assert (forest.n_features, forest.input_dtype) == (4, np.float32)
    check(model, rows_near(forest))


BIG, ZERO = np.float32(1e30), np.float32(0)
MANY = np.float64(1e300)
MARKER = {"imputed_value_floats": [1.0], "replaced_value_float": float("inf")}
#: Steps that answer infinity otherwise than the numbers beside it, after steps that
#: make infinities of numbers; the constants, and the types of the rows and the trees.
OVERFLOWS: dict[str, tuple[Any, ...]] = {
    "Imputer": ([node("Mul", "X c", "a"), node("Imputer", "a", **MARKER)],
                [("c", BIG)]),
    "Mul": ([node("Div", "X c", "a"), node("Mul", "a z")],
            [("c", 1 / BIG), ("z", ZERO)]),
    "Scaler": ([node("Scaler", "X", "a", offset=[0.0], scale=[1e30]),
                node("Scaler", "a", offset=[0.5], scale=[0.0])], []),
    "Scaler of doubles": ([node("Scaler", "X", offset=[0.5], scale=[0.0])], [],
                          {"graph_dtype": "float64"}),
    "Cast": ([node("Cast", "X", "a", to=1),
              node("Scaler", "a", offset=[0.5], scale=[0.0])], [],
             {"graph_dtype": "float64"}),
    "Mul of doubles": ([node("Mul", "X c", "a"), node("Mul", "a z")],
                       [("c", MANY), ("z", np.float64(0))], {"dtype": "float64"}),
    "whole numbers": ([node("Scaler", "X", offset=[0.5], scale=[0.0])], [],
                      {"graph_dtype": "int64"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERFLOWS)
def test_numbers_that_become_infinities_fold(name):
    steps, constants, how = (*OVERFLOWS[name], {})[:3]
    model = model_of(*steps, constants=constants, modes=MODES, **how)
    dtype = how.get("graph_dtype", how.get("dtype", "float32"))
    if dtype == "int64":
        check(model, np.random.default_rng(0).integers(-(2**52), 2**52, (300, 4)))
        return
    random = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        rows = (random.normal(size=(600, 4)) * 3).astype(dtype)
        odd = [1e8, 3.4e8, 3.5e8, -1e9, 3e38, -3e38, 1e39, 1e300, -1e300, np.nan]
        some = random.random(rows.shape) < 0.4
        rows[some] = random.choice(np.array(odd).astype(dtype), int(some.sum()))
    check(model, rows)


def test_an_end_that_clip_lacks_is_the_largest_number():
    column = Column(0, np.dtype(np.float32))
    tensor = Tensor(cells_of([column], (1,)), 1)
    clip = onnx.helper.make_node("Clip", ["X", "", "high"], ["Y"])
    one = GraphNode(clip, 13, {}, [tensor, None, np.float32(1)])
    (clipped,) = operator_of(clip)(one)
    rows = np.float32([-np.inf, -3, 3, np.inf])
    found = clipped.cells[0].stage.transform([rows])[:, 0]
    assert found.tolist() == [np.finfo(np.float32).min, -3, 1, 1]


def test_whole_numbers_that_float64_rounds_are_no_keys():
    cast = node("Cast", "X", "i", to=7)
    keys = {"keys_int64s": [2**53, 1], "values_floats": [1.0, 2.0]}
    model = model_of(cast, node("LabelEncoder", "i", name="codes", **keys))
    assert refusal(UnsupportedModelError, load_forest, model) == (
        "The node 'codes' (LabelEncoder) has whole numbers that float64 rounds, "
        + ADVICE
    )


@pytest.mark.parametrize("then", ["Scaler", "Cast", "Sub"])
def test_operators_on_doubles(then):
    how: dict[str, Any] = {"graph_dtype": "float64"}
    if then == "Scaler":
        steps = [node("Scaler", "X", offset=OFFSETS, scale=[0.3, -2.0, 1.0, 1e3])]
    elif then == "Cast":
        steps = [node("Sub", "X c", "d"), node("Cast", "d", to=1)]
    else:
        steps, how = [node("Sub", "X c")], {"dtype": "float64"}
    model = model_of(*steps, constants=[("c", np.array(OFFSETS))], **how)
    forest = load_forest(model)
    assert forest.input_dtype == np.float64
    check(model, rows_near(forest, "float64"))


TRAVEL = {"age": ("int64", 1), "city": ("object", 1), "pay": ("float32", 1)}
CITIES = ["Rome", "Oslo", "Bern", "nan"]


def travel(*before: Any, width: int, seed: int = 0, **how: Any) -> Any:
    return model_of(*before, width=width, inputs=TRAVEL, seed=seed, **how)


def people(n: int = 400) -> dict[str, Any]:
    random = np.random.default_rng(3)
    pay = random.choice([np.nan, np.inf, -0.0, 1.0, 2.5, -3.0], (n, 1))
    city = random.choice([*CITIES, "Paris", ""], (n, 1)).astype(object)
    return {
        "age": random.integers(-4, 5, (n, 1)),
        "city": city,
        "pay": pay.astype(np.float32),
    }


ONE_HOT = [
    node("Cast", "age", "a", to=1),
    node("Concat", "a pay", "n", axis=1),
    node("Scaler", "n", "s", offset=[0.5, 1.0], scale=[0.25, 2.0]),
    node("OneHotEncoder", "city", "h", cats_strings=CITIES, zeros=1),
    node("Reshape", "h shape", "r"),
    node("Concat", "s r", axis=1),
]
CODES = [
    node("LabelEncoder", "city", "c", keys_strings=CITIES,
         values_floats=[2.0, 0.0, 1.0, 5.0], default_float=-3.5),
    node("LabelEncoder", "age", "a", keys_int64s=[0, 3, 1], values_int64s=[1, 0, 2]),
    node("Cast", "a", "f", to=1),
    node("OneHotEncoder", "age", "h", cats_int64s=[3, -1, 4], zeros=1),
    node("Reshape", "h shape", "r"),
    node("Concat", "f c pay r", axis=1),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("before", "width"), [(ONE_HOT, 6), (CODES, 6)])
def test_an_input_for_each_column(before, width, seed):
    shape = 4 if before is ONE_HOT else 3
    constants = [("shape", [-1, shape])]
    model = travel(*before, width=width, constants=constants, seed=seed)
    forest = load_forest(model)
    assert forest.feature_names == ("age", "city", "pay")
    feed = people()
    rows = reader_of(forest).rows(np.hstack([*feed.values()], dtype=object))
    (expected,) = run(model, feed)
    found = apply_transform(forest, reference_raw(forest, rows))
    assert_same_bits(found, expected[:, 0])


def test_unknown_texts_are_refused_where_the_encoder_refuses_them():
    before = [*ONE_HOT[:3], node("OneHotEncoder", "city", "h", cats_strings=CITIES,
                                 zeros=0), *ONE_HOT[4:]]  # fmt: skip
    forest = load_forest(travel(*before, width=6, constants=[("shape", [-1, 4])]))
    assert forest.closed_columns == (1,)
    read = reader_of(forest).rows
    assert read([[1, "Oslo", 2.0]]).shape == (1, 3)
    assert refusal(InvalidInputError, read, [[1, "Paris", 2.0]]) == (
        "column 'city' holds 'Paris', for which the graph has no category and raises "
        "an error; it knows ['Rome', 'Oslo', 'Bern', 'nan']."
    )
    assert refusal(InvalidInputError, read, [[1, 7, None]]) == (
        "column 'city' holds 7 of type int, and the graph reads texts there; convert "
        "it with astype(str)."
    )
    assert refusal(InvalidInputError, read, [["x", "Oslo", 2.0]]) == (
        "column 'age' holds values that are no numbers (could not convert string to "
        "float: 'x'), and the graph reads numbers there."
    )


WHOLE = {"int64": 2.0**64, "int32": 2.0**33, "bool": 2.0}


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_are_read_where_the_graph_reads_them(dtype):
    forest = load_forest(model_of(node("Cast", "X", to=1), graph_dtype=dtype))
    bits = {"int64": 64, "int32": 32, "bool": 1}[dtype]
    assert forest.whole_columns == tuple((i, bits) for i in range(4))
    drawn = draw_rows(forest, 50, 0, 0.1)
    rows = np.vstack([drawn, np.zeros((1, 4), np.float32)])
    read = reader_of(forest).rows
    assert np.array_equal(read(rows), rows)
    for value in (0.5, np.nan, np.inf, WHOLE[dtype]):
        rows[3, 2] = value
        for given in (rows, rows.tolist(), csr_array(rows[3:])):
            text = refusal(InvalidInputError, read, given)
            assert text.startswith(f"column 2 holds {value} in row "), text
    with pytest.raises(InvalidInputError, match="in row 0, and the graph reads int64"):
        reader_of(load_forest(travel(*ONE_HOT, width=6, constants=[SHAPE]))).rows(
            [[0.5, "Rome", 1.0]]
        )


SHAPE = ("shape", [-1, 4])
REFUSED = {
    "LpNormalization": (
        [node("LpNormalization", "X", name="rows")], [],
        "The node 'rows' (LpNormalization) computes with several columns of a row, "
    ),
    "Normalizer of what others make": (
        [node("Clip", "X", "c"), node("Normalizer", "c", name="rows")], [],
        "The node 'rows' (Normalizer) computes with several columns of a row that "
        "other nodes make, "
    ),
    "beside its norm": (
        [node("Normalizer", "X", "n"), node("Concat", "X n", axis=1)], [],
        "Column 0 of the rows is divided by a norm of its row (Normalizer), and also "
        "read in another way, "
    ),
    "two columns": (
        [node("Mul", "X X", name="twice")], [],
        "The node 'twice' (Mul) computes with several columns of a row, ",
    ),
    "whole rows": (
        [node("Concat", "X X", name="below", axis=0)], [],
        "The node 'below' (Concat) works along axis 0, which mixes rows, ",
    ),
    "Div": (
        [node("Div", "c X", name="inverse")], [("c", np.float32(1))],
        "The node 'inverse' (Div) divides a constant by a column, ",
    ),
    "closed numbers": (
        [node("Cast", "X", "i", to=7),
         node("OneHotEncoder", "i", cats_int64s=[1], zeros=0, name="hot")], [],
        "The node 'hot' (OneHotEncoder) raises an error for numbers that it does not "
        "know (zeros=0, from handle_unknown='error'), which the trees cannot, ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fold_is_named(name):
    before, constants, text = REFUSED[name]
    model = model_of(*before, constants=constants)
    assert refusal(UnsupportedModelError, load_forest, model) == text + ADVICE


HOT = [-2, 0, 3, 1]
#: Steps after which a test of the trees is true on several intervals of numbers.
SEVERAL: dict[str, tuple[Any, ...]] = {
    "infinities": (
        [node("Scaler", "X", offset=[0.5] * 4, scale=[0.0, 1.0, 0.0, -1.0])],
        [],
    ),
    "Mul": ([node("Mul", "X c")], [("c", np.float32([0.3, -2.0, 0.0, 1e3]))]),
    "Imputer": (
        [node("Imputer", "X", imputed_value_floats=[9.0], replaced_value_float=1.0)],
        [],
    ),
    "whole": (
        [node("Cast", "X", "i", to=7), node("Cast", "i", to=1)],
        [],
    ),
    "hot": (
        [
            node("OneHotEncoder", "X", "h", cats_int64s=HOT, zeros=1),
            node("Flatten", "h", "f"),
            node("Concat", "X f", axis=1),
        ],
        [],
        20,
    ),
    "codes": (
        [
            node(
                "LabelEncoder",
                "X",
                keys_floats=[-1.0, 2.0, 0.0, 1.5],
                values_floats=[3.0, 0.0, -2.0, 1.0],
                default_float=1.0,
            )
        ],
        [],
    ),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", SEVERAL)
def test_tests_of_several_intervals_become_several_nodes(name, seed):
    before, constants, *width = SEVERAL[name]
    how: dict[str, Any] = {"constants": constants, "width": (*width, 4)[0]}
    model = model_of(*before, modes=MODES, seed=seed, **how)
    check(model, rows_near(load_forest(model)))


def test_rows_without_a_declared_width():
    model = model_of(*STEPS["Scaler"][0], n_features=None)
    assert refusal(UnsupportedModelError, load_forest, model) == (
        "The node 'steps' (Scaler) reads rows whose number of columns the graph does "
        "not declare, or declares as more than 65536; convert the model with the "
        "shape of its input."
    )


DAMAGED = {
    "Scaler": ([node("Scaler", "X", offset=[1.0, 2.0], scale=[1.0])], [],
               "offset of the node 'steps' (Scaler) has 2 numbers for 4"),
    "Gather": ([node("Gather", "X i", axis=1)], [("i", [4])],
               "the node 'steps' (Gather) asks for columns that are not there"),
    "Mul": ([node("Mul", "X c")], [("c", np.float32([1, 2, 3]))],
            "the constant of the node 'steps' (Mul) does not fit its columns"),
    "dtype": ([node("Mul", "X c")], [("c", np.arange(4))],
              "the constant of the node 'steps' (Mul) does not fit its column"),
    "OneHotEncoder": ([node("OneHotEncoder", "X", cats_int64s=[1, 1])], [],
                      "the node 'steps' (OneHotEncoder) has no categories, or one "
                      "twice"),
    "Imputer": ([node("Imputer", "X")], [],
                "the node 'steps' (Imputer) has no imputed_value_floats"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_operators(name):
    before, constants, text = DAMAGED[name]
    model = model_of(*before, constants=constants)
    assert refusal(InvalidModelError, load_forest, model) == (
        f"{text}; the model is damaged, export it again."
    )


# ------------------------------------------------------------------ several ensembles


def several(kind: str, n: int, after: list[Any], constants: Any, **how: Any) -> Any:
    """Return a graph of ``n`` ensembles of the same rows, whose answers are joined."""
    attributes, outputs = how["attributes"], how["outputs"]
    nodes = []
    for i in range(n):
        made = [f"label{i}"] if kind == "Classifier" else []
        nodes.append(
            onnx.helper.make_node(
                f"TreeEnsemble{kind}",
                [how.get("reads", "X")],
                [*made, f"s{i}"],
                domain=ML,
                **attributes(i),
            )
        )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [*how.get("before", ()), *nodes, *after],
        "several",
        [value("X", 1, [None, 4])],
        [value(*output) for output in outputs],
        [constant(name, values) for name, values in constants],
    )
    sets = [onnx.helper.make_opsetid(ML, 3), onnx.helper.make_opsetid("", 18)]
    return onnx.helper.make_model(graph, opset_imports=sets, ir_version=9)


def mean_of(n: int, width: int) -> list[Any]:
    stacks = [node("Reshape", f"s{i} stack", f"r{i}") for i in range(n)]
    names = " ".join(f"r{i}" for i in range(n))
    return [
        *stacks,
        node("Concat", names, "all", axis=0),
        node("ReduceMean", "all first", "mean", keepdims=0),
    ]


def first(*shape: int) -> list[tuple[str, Any]]:
    return [("stack", np.array(shape)), ("first", np.array([0]))]


def test_the_mean_of_trees_is_a_forest():
    """Bagging of regressors: onnxruntime adds the trees in turn, and divides."""
    trees = [RandomTrees(i, n_trees=1, modes=MODES) for i in range(7)]
    model = several(
        "Regressor",
        7,
        mean_of(7, 1),
        first(1, -1, 1),
        attributes=lambda i: regressor(trees[i]) | {"base_values": [0.1 * i]},
        outputs=[("mean", 1, [None, 1])],
    )
    forest = check(model, trees[0].rows(300, missing=0.1))
    assert (forest.n_trees, forest.divisor) == (7, 7)


@pytest.mark.parametrize("labels", [[3, 5], [0, 1, 2], ["no", "yes"]], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_the_mean_of_classifiers_is_a_forest(labels, scaled):
    width = len(labels)
    trees = [RandomTrees(i, n_trees=1, modes=ORDERED) for i in range(5)]
    texts = isinstance(labels[0], str)
    key = "classlabels_strings" if texts else "classlabels_int64s"

    def attributes(i: int) -> dict[str, Any]:
        scored = [1] if width == 2 else range(width)
        weights = trees[i].weights("class", lambda _: scored)
        weights["class_weights"] = np.abs(weights["class_weights"]).tolist()
        # each tree numbers the classes, as bagging does
        numbers = [*range(width)] if not texts else labels
        return {**trees[i].table(), **weights, key: numbers}

    after = [
        *mean_of(5, width),
        node("ArgMax", "mean", "at", axis=1),
        node("ArrayFeatureExtractor", "classes at", "found"),
        node("Reshape", "found flat", "label"),
    ]
    classes = np.array(labels, object if texts else np.int32)
    constants = [*first(1, -1, width), ("classes", classes), ("flat", np.array([-1]))]
    if not texts:
        after[-1:] = [
            node("Cast", "found", "wide", to=7),
            node("Reshape", "wide flat", "label"),
        ]
    before = [node("Scaler", "X", "scaled", offset=[0.5], scale=[3.0])]
    model = several(
        "Classifier",
        5,
        after,
        constants,
        attributes=attributes,
        outputs=[("label", 8 if texts else 7, [None]), ("mean", 1, [None, width])],
        **({"reads": "scaled", "before": before} if scaled else {}),
    )
    forest = check(model, trees[0].rows(300, missing=0.1))
    assert forest.class_labels == tuple(labels)


@pytest.mark.parametrize("average", [False, True])
def test_regressors_side_by_side_are_outputs(average):
    trees = [RandomTrees(i, n_trees=9, modes=MODES) for i in range(3)]

    def attributes(i: int) -> dict[str, Any]:
        mode = {"aggregate_function": "AVERAGE"} if average else {}
        base = {"base_values": [0.1 * i]} if i else {}
        return regressor(trees[i]) | mode | base

    after = [
        node("Reshape", "s1 flat", "r"),
        node("Identity", "s2", "same"),
        node("Concat", "s0 r same", "all", axis=1),
    ]
    model = several(
        "Regressor",
        3,
        after,
        [("flat", np.array([-1, 1]))],
        attributes=attributes,
        outputs=[("all", 1, [None, 3])],
    )
    forest = check(model, trees[0].rows(300, missing=0.1))
    assert (forest.n_trees, forest.n_outputs) == (27, 3)


def test_other_unions_of_ensembles_are_computed():
    trees = [RandomTrees(i, n_trees=2, modes=MODES) for i in range(2)]
    how: dict[str, Any] = {
        "attributes": lambda i: regressor(trees[i]),
        "outputs": [("mean", 1, [None, 1])],
    }
    rows = trees[0].rows(300, missing=0.1)
    model = several("Regressor", 2, mean_of(2, 1), first(1, -1, 1), **how)
    check(model, rows)
    after = [node("Mul", "s0 half", "a"), node("Sum", "a s1", "mean")]
    model = several("Regressor", 2, after, [("half", np.float32([0.5]))], **how)
    check(model, rows)


# ------------------------------------------------------------------ norms of rows

NORMS = {
    "alone": [node("Normalizer", "X", norm="L1")],
    "then scaled": [
        node("Normalizer", "X", "n", norm="MAX"),
        node("Scaler", "n", offset=[0.5], scale=[0.3]),
    ],
    "of some, in another order": [
        node("ArrayFeatureExtractor", "X some", "a"),
        node("ArrayFeatureExtractor", "X rest", "b"),
        node("Normalizer", "a", "n", norm="L2"),
        node("Concat", "b n", axis=1),
    ],
    "two": [
        node("Split", "X", "a b", axis=1, num_outputs=2),
        node("Normalizer", "a", "n", norm="L2"),
        node("Normalizer", "b", "m", norm="MAX"),
        node("Concat", "m n", axis=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", NORMS)
def test_norms_of_rows(steps):
    places = [("some", np.array([3, 1, 0])), ("rest", np.array([2]))]
    model = model_of(*NORMS[steps], constants=places)
    forest = load_forest(model)
    rows = np.random.default_rng(0).normal(size=(900, 4)).astype(np.float32)
    odd = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 1e38], np.float32)
    chosen = np.random.default_rng(1).integers(0, 20, rows.shape)
    rows = np.where(chosen < 7, odd[chosen % 7], rows)
    before = rows.copy()
    made = reader_of(forest).rows(rows)
    assert np.array_equal(rows, before, equal_nan=True)
    found = apply_transform(forest, reference_raw(forest, made))
    assert_same_bits(found, run(model, rows)[0][:, 0])
    sparse = csr_array(np.where(np.isnan(rows), 1, rows))
    read = reader_of(forest).rows(sparse)
    assert np.array_equal(read, reader_of(forest).rows(sparse.toarray()), True)
    norms = ", ".join(norm for norm, _ in forest.row_norms)
    assert f"float32 rows divided by norms ({norms})," in repr(forest)


def test_norms_of_inputs_with_names():
    steps = [
        node("Concat", "pay tax", "n", axis=1),
        node("Normalizer", "n", "p", norm="L1"),
        node("Cast", "age", "a", to=1),
        node("Concat", "p a", axis=1),
    ]
    inputs = {"age": ("float64", 1), "tax": ("float32", 1), "pay": ("float32", 1)}
    model = model_of(*steps, width=3, inputs=inputs)
    forest = load_forest(model)
    assert forest.row_norms == (("L1", (2, 1)),)
    random = np.random.default_rng(0)
    feed = {
        name: random.normal(size=(500, 1)).astype(dtype)
        for name, (dtype, _) in inputs.items()
    }
    made = reader_of(forest).rows(np.hstack([*feed.values()]))
    found = apply_transform(forest, reference_raw(forest, made))
    assert_same_bits(found, run(model, feed)[0][:, 0])
