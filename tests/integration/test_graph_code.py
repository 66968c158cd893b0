"""What ONNX graphs compute of scores, as machine code: it has the bits of arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier
from sklearn.tree import DecisionTreeClassifier

from skforge import UnsupportedModelError
from skforge.engine import graph_routine
from skforge.exceptions import CompilerError
from skforge.forest.outputs import OutputSpec
from skforge.outputs.graph import (
    GraphConstant,
    GraphMember,
    GraphProgram,
    GraphRunner,
    GraphStep,
)
from skforge.outputs.graph_nodes import traced
from skforge.outputs.steps import UntracedError
from tests.onnx_models import assert_same_bits, run
from tests.plain import plain

F = np.float32
#: Three scores each, but two of the third ensemble, from one.
SPECS = [
    OutputSpec(
        function="onnx", labels="first_greatest", offsets=(0.0, 0.5, 0.0), post="none"
    ),
    OutputSpec(
        function="onnx", labels="first_greatest", offsets=(0.0, 0.0, -1.0),
        post="softmax",
    ),
    OutputSpec(
        function="onnx", labels="above_bound", layout="one", parameter=0.5,
        offsets=(-0.0,), post="logistic",
    ),
]  # fmt: skip
RANGES = [(0, 3, 1), (3, 6, 7), (6, 7, 1)]


class Program:
    """Builds a program; values are numbers of its arrays."""

    def __init__(self, labels: tuple[int, ...] = (4, -2, 9)) -> None:
        self.members = tuple(
            GraphMember(*at, spec, labels[: 2 if spec.layout == "one" else 3])
            for at, spec in zip(RANGES, SPECS, strict=True)
        )
        self.constants: list[Any] = []
        self.steps: list[GraphStep] = []

    def const(self, values: Any, dtype: str = "float32") -> tuple[str, int]:
        self.constants.append(GraphConstant.of(np.asarray(values, dtype)))
        return "const", len(self.constants) - 1

    def step(self, operator: str, *inputs: Any, n: int = 1, **attributes: Any) -> Any:
        at = {
            name: value if isinstance(value, tuple) else (value,)
            for name, value in attributes.items()
        }
        first = sum(step.n_outputs for step in self.steps)
        self.steps.append(GraphStep(operator, operator, inputs, n, at))
        made = tuple(("made", first + k) for k in range(n))
        return made[0] if n == 1 else made

    def runner(self, *wanted: Any) -> tuple[GraphRunner, tuple[int, ...]]:
        first = 3 * len(self.members)
        starts = {"const": first, "made": first + len(self.constants)}

        def number(x: Any) -> int:
            return x if isinstance(x, int) else starts[x[0]] + x[1]

        steps = tuple(
            replace(step, inputs=tuple(map(number, step.inputs))) for step in self.steps
        )
        scores = tuple(map(number, wanted))
        members = self.members, tuple(self.constants), steps, scores
        return GraphRunner(GraphProgram(*members)), scores


def rows(n: int, seed: int, special: bool = False) -> Any:
    random = np.random.default_rng(seed)
    raw = random.normal(size=(n, 7)) * 10.0 ** random.integers(-3, 3, size=(n, 7))
    raw = np.where(random.random((n, 7)) < 0.2, random.integers(-2, 3, (n, 7)), raw)
    if special:
        odd = [0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, np.inf, -np.inf, 1.5, 2.0**40]
        raw = np.where(random.random((n, 7)) < 0.3, random.choice(odd, (n, 7)), raw)
    return raw.astype(F)


def assert_code_has_the_bits(program: Program, *wanted: Any, seed: int = 0) -> int:
    """Return how many batches the code answered."""
    runner, numbers = program.runner(*wanted)
    raw = rows(1030, seed)
    code = graph_routine._code(runner, numbers, raw)
    assert code is not None
    batches = [raw[:n] for n in (1, 2, 3, 4, 5, 9, 1025, 1030)]
    batches += [rows(1, seed + k, True) for k in range(60)]
    batches += [rows(5, seed + k, True) for k in range(20)]
    n_answered = 0
    for batch in batches:
        found = code(batch)
        try:
            expected = runner(batch, numbers)
        except UnsupportedModelError:
            assert found is None
            continue
        nan = any(np.isnan(x).any() for x in expected if x.dtype.kind == "f")
        if found is None:
            continue
        assert not nan
        n_answered += 1
        for mine, theirs in zip(found, expected, strict=True):
            assert_same_bits(mine, theirs)
    return n_answered


class Random:
    """Draws steps on matrices of float32 numbers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.p = Program()
        self.known = [(0, 3), (3, 3), (6, 2)]  # values, and numbers of columns

    def some(self) -> tuple[Any, int]:
        return self.known[self.random.integers(len(self.known))]

    def numbers(self, *shape: int) -> Any:
        values = self.random.normal(size=shape) * 2
        return self.p.const(np.where(self.random.random(shape) < 0.2, 0.0, values))

    def wide(self) -> tuple[Any, int]:
        parts = [self.some() for _ in range(self.random.integers(2, 5))]
        made = self.p.step("Concat", *(x for x, _ in parts), axis=1)
        return made, sum(width for _, width in parts)

    def test(self, x: Any, width: int) -> Any:
        names = "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"
        one, other = (
            self.p.step(self.random.choice(names), x, self.numbers(width))
            for _ in range(2)
        )
        either = self.p.step(self.random.choice(["And", "Or"]), one, other)
        return self.p.step("Not", either)

    def place(self, x: Any, **how: Any) -> Any:
        return self.p.step(self.random.choice(["ArgMax", "ArgMin"]), x, axis=1, **how)

    def add(self) -> None:
        p, (x, width) = self.p, self.some()
        kind = self.random.integers(19)
        match kind:
            case 0:
                name = self.random.choice(["Add", "Sub", "Mul", "Div"])
                x = p.step(name, x, self.numbers(width))
            case 1:
                y = p.step(self.random.choice(["Neg", "Abs", "Sign", "Identity"]), x)
                x = p.step("Sum", x, y, self.numbers(1))
            case 2:
                x = p.step(self.random.choice(["Exp", "Sigmoid"]), x)
            case 3:
                x = p.step("Clip", x, p.const(-0.5), p.const(0.75))
            case 4:
                x = p.step("Where", self.test(x, width), x, self.numbers(width))
            case 5:
                x = p.step("Cast", self.test(x, width), to=1)
            case 6:
                to = int(self.random.choice([6, 7, 9, 11]))
                x = p.step("Cast", p.step("Cast", x, to=to), to=1)
            case 7:  # isotonic regression's
                near = p.step("Abs", p.step("Sub", p.step("Slice", x, *(
                    p.const([k], "int64") for k in (0, 1, 1)
                )), self.numbers(12)))  # fmt: skip
                x = p.step(
                    "ArrayFeatureExtractor", self.numbers(1, 12), self.place(near)
                )
                x, width = p.step("Reshape", x, p.const([-1, 1], "int64")), 1
            case 8:
                place = self.place(x, keepdims=0)
                one_hot = p.step("Gather", self.numbers(width), place)
                x, width = p.step("Unsqueeze", one_hot, p.const([1], "int64")), 1
            case 9:
                x, width = self.wide()
                name = self.random.choice(["ReduceSum", "ReduceMean"])
                x, width = p.step(name, x, p.const([1], "int64")), 1
            case 10:
                n = int(self.random.integers(1, 7))
                x, width = (
                    p.step("Linear", x, self.numbers(n, width), self.numbers(n)),
                    n,
                )
            case 11:
                x = p.step("L1", x)
            case 12:
                x = p.step("CumSum", x, p.const(1, "int64"))
            case 13:
                shape = p.const([1, -1, width], "int64")
                both = [p.step("Reshape", x, shape) for x in (x, p.step("Neg", x), x)]
                stacked = p.step("Concat", *both, axis=0)
                x = p.step("ReduceMean", stacked, p.const([0], "int64"), keepdims=0)
            case 14:
                x, width = p.step("GatherElements", x, self.place(x), axis=1), 1
            case 15:
                first, second = p.step("Split", x, n=2, parts=2, axis=1)
                x, width = p.step("Sub", second, second), width // 2
                x = p.step("Add", x, second) if width else first
                width = width or 1
            case 16:
                ones = p.step("ConstantOfShape", p.step("Shape", x), p.const([0.5]))
                x = p.step("Mul", x, ones)
            case 17 | 18:
                x, width = self.wide()
                some = p.const([max(2, width - 2)], "int64")
                values, order = p.step("TopK", x, some, n=2, axis=1)
                self.known.append((p.step("Cast", order, to=1), max(2, width - 2)))
                if kind == 17:
                    x, width = values, max(2, width - 2)
                else:  # a weighted median's
                    at = p.step("GatherElements", order, self.place(values), axis=1)
                    x, width = p.step("GatherElements", x, at, axis=1), 1
        self.known.append((x, width))


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed):
    random = Random(seed)
    for _ in range(14):
        random.add()
    wanted = [x for x, _ in random.known[-6:]]
    place = random.place(random.wide()[0])
    assert assert_code_has_the_bits(random.p, *wanted, place, seed=seed) > 10


@pytest.mark.parametrize("width", [4, 5, 6, 7, 9])
def test_sums_by_the_place_of_a_row(width):
    p = Program()
    columns = [p.step("Concat", *[0, 3, 6][: 1 + k % 3], axis=1) for k in range(3)]
    x = p.step("Concat", *columns, axis=1)
    ends = (p.const([k], "int64") for k in (0, width, 1))
    total = p.step("ReduceSum", p.step("Slice", x, *ends), p.const([1], "int64"))
    runner, numbers = p.runner(total)
    assert len(traced(runner, numbers).several) == (1 if width == 4 else 4)
    assert assert_code_has_the_bits(p, p.step("Add", total, 0)) > 20


def test_labels_of_ensembles():
    p = Program()
    names = [p.step("Cast", p.step("Unsqueeze", i + k, axes=(1,)), to=7)
             for i in (0, 3, 6) for k in (1, 2)]  # fmt: skip
    assert assert_code_has_the_bits(p, p.step("Concat", *names, axis=1)) > 60


def test_nan_is_left_to_arrays():
    p = Program()
    zero = p.step("Sub", 0, 0)
    quotient = p.step("Div", zero, zero)
    runner, numbers = p.runner(quotient)
    raw = rows(3, 0)
    code = graph_routine._code(runner, numbers, raw)
    assert code(raw) is None and np.isnan(runner(raw, numbers)[0]).all()


UNTRACED = {
    "rows": lambda p: p.step("Gather", 0, p.const([1, 0], "int64"), axis=0),
    "first row": lambda p: p.step("Sub", 0, p.step("Gather", 0, p.const(0, "int64"))),
    "number of rows": lambda p: p.step(
        "Mul", 0, p.step("Cast", p.step("Gather", p.step("Shape", 0),
                                        p.const(0, "int64")), to=1)),
    "sort": lambda p: p.step("TopK", 0, p.const([2], "int64"), n=2, largest=0)[0],
    "later": lambda p: p.step("Unheard", 0),
    "far places": lambda p: p.step(
        "Gather", p.const([1.0, 2.0]), p.step("ArgMax", 0, axis=1, keepdims=0)),
    "targets": lambda p: p.step("Reshape", 0, p.const([1, -1, 3], "int64")),
}  # fmt: skip


@pytest.mark.parametrize("name", UNTRACED)
def test_what_arrays_alone_compute(name):
    p = Program()
    runner, numbers = p.runner(UNTRACED[name](p))
    with pytest.raises(UntracedError):
        traced(runner, numbers)


MODELS = {
    "sigmoid": lambda tree: CalibratedClassifierCV(tree, cv=2),
    "isotonic": lambda tree: CalibratedClassifierCV(tree, cv=2, method="isotonic"),
    "one sigmoid": lambda tree: CalibratedClassifierCV(tree, cv=2, ensemble=False),
    "bags": lambda tree: BaggingClassifier(tree, 5, random_state=0),
    "samme": lambda tree: AdaBoostClassifier(tree, n_estimators=4, random_state=0),
}


def converted(name: str, texts: bool = False) -> tuple[Any, Any]:
    skl2onnx = pytest.importorskip("skl2onnx")
    X = np.random.default_rng(4).normal(size=(900, 4)).astype(F)
    y = np.digitize(X[:, 0] + X[:, 1] * X[:, 2], [-1, -0.4, 0, 0.4, 1])
    model = MODELS[name](DecisionTreeClassifier(max_depth=3, random_state=0))
    model.fit(X[:200], np.array([*"abcdef"])[y[:200]] if texts else y[:200])
    options = {"zipmap": False}
    return skl2onnx.to_onnx(model, X[:1], options={type(model): options}), X


@pytest.mark.parametrize("name", MODELS)
def test_entries_answer_graphs(name):
    pytest.importorskip("onnxruntime")
    model, X = converted(name, texts=name in ("sigmoid", "bags"))
    fast = plain(model).fit(X[:60])
    names = "predict", "predict_proba"
    for n in (1, 2, 3, 6, 33, 900):
        for method, wanted in zip(names, run(model, X[:n]), strict=True):
            found = getattr(fast, method)(X[:n])
            if found.dtype == object:
                assert found.tolist() == wanted.tolist()
            else:
                assert_same_bits(found, wanted)
    entries = fast._predictor.entries
    assert all(entries[method](X[:1]) is not None for method in names)


def test_graphs_without_a_compiler(monkeypatch):
    model, X = converted("isotonic")
    fast = plain(model).fit(X[:60])
    expected = fast.predict_proba(X)
    module = fast._predictor.module  # which no entry answers for

    def refused(*args: Any) -> Any:
        raise CompilerError("no executable memory")

    monkeypatch.setattr(graph_routine, "routine", refused)
    graph_routine.graph.runner_of.cache_clear()
    assert_same_bits(module.predict(X), expected)
    assert [
        *graph_routine.graph.runner_of(fast.forest_.outputs.graph)._codes.values()
    ] == [None]


def test_graphs_are_warmed_up(monkeypatch):
    model, X = converted("sigmoid")
    fast = plain(model).fit(X[:60])
    asked: list[Any] = []
    made = graph_routine.routine
    monkeypatch.setattr(
        graph_routine, "routine", lambda *args: asked.append(args[2]) or made(*args)
    )
    graph_routine.graph.runner_of.cache_clear()
    fast.warm_up()
    program = graph_routine.graph.runner_of(fast.forest_.outputs.graph).program
    assert asked == [program.scores, (program.places,)]
    fast.predict(X), fast.predict_proba(X)
    assert len(asked) == 2
    assert fast.predict(X[:0]).shape == (0,)
    assert fast.predict_proba(X[:0]).shape == (0, 6)
