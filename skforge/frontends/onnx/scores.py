"""Reads the nodes after tree ensembles into a program that computes with scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.combine import joined
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec, Task
from skforge.forest.validation import damaged
from skforge.frontends.onnx.leaf_sums import leaf_sums
from skforge.frontends.onnx.operators import ENSEMBLES, ML, title_of
from skforge.outputs.graph import (
    PER_MEMBER,
    GraphConstant,
    GraphProgram,
    GraphRunner,
    GraphStep,
    rows_axis,
)
from skforge.outputs.graph_members import GraphMember, member_of, text_of
from skforge.outputs.graph_operators import OPERATORS

_ADVICE = (
    "give skforge the scikit-learn model that was converted, or end the graph before "
    "this node"
)
#: Operators that change no label, but its type or shape.
_SAME = ("Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
#: What LinearClassifier makes of its sums.
_POSTS = {b"NONE": (), b"LOGISTIC": ("Sigmoid",), b"SOFTMAX": ("SoftmaxOfLinear",)}
#: Rows of scores with which a program is tried.
_TRIED = 24
#: What forests must share to be joined.
_KIND = (
    *("input_dtype", "accumulator_dtype", "n_features", "category_names", "aggregate"),
    *("feature_names", "closed_columns", "truncate_categories", "wider_rows"),
    "whole_columns",
    "row_norms",
)


class NodesAfter(NamedTuple):
    """The nodes after the trees, and what they read."""

    nodes: Sequence[Any]
    ensembles: Sequence[Any]
    outputs: Sequence[str]
    constant: Callable[[str], Array | None]
    attributes: Callable[[Any], Mapping[str, Any]]


class _Labels(NamedTuple):
    labels: tuple[str | int, ...]
    places: int  # the value with their numbers


def computed(
    forests: Sequence[Forest], after: NodesAfter, read: Callable[[Any, Any], Forest]
) -> Forest:
    """Return the forest of all ensembles' trees, whose outputs are a program's.

    ``read`` makes forests of ensembles that read what others answer, of a dtype.
    """
    kinds = [tuple(getattr(f, name) for name in _KIND) for f in forests]
    if any(kind != kinds[0] for kind in kinds) or forests[0].aggregate != "sum":
        raise UnsupportedModelError(
            "The model has tree ensembles that read rows of several kinds, or that "
            "take the least or the greatest leaf, and computes with their answers; "
            "give skforge the scikit-learn model that was converted."
        )
    ends = np.cumsum([0, *(forest.n_outputs for forest in forests)]).tolist()
    members = tuple(map(member_of, forests, ends))
    reader = _ProgramReader(members, after, read, forests[0].accumulator_dtype)
    program = reader.read()
    if (moved := leaf_sums(forests, program)) is not None:
        forests, ends, program = (
            [moved.forest],
            [0, moved.forest.n_outputs],
            moved.program,
        )
        reader.moves_to(program, moved.numbers)
    program, labels, task = reader.with_answers(program)
    outputs = OutputSpec(
        "graph",
        probabilities="values",
        labels="graph",
        named=bool(labels),
        graph=program.text,
    )
    base = np.zeros(ends[-1], forests[0].accumulator_dtype)
    plain = [replace(f, divisor=1) for f in forests]
    fields = {"task": task, "class_labels": labels, "outputs": outputs}
    return joined(plain, ends[:-1], base=base, **fields)


class _ProgramReader:
    def __init__(
        self,
        members: tuple[GraphMember, ...],
        after: NodesAfter,
        forest_of: Callable[[Any, Any], Forest],
        dtype: Any,
    ) -> None:
        self.members, self.after, self.dtype = members, after, dtype
        self.forest_of = forest_of
        #: The numbers of values, by name; the names of a list's arrays.
        self.numbers: dict[str, int] = {}
        self.lists: dict[str, list[str]] = {}
        self.labels: dict[str, _Labels] = {}
        self.maps: list[Any] = []
        self.alike = False  # whether all columns of the scores are nearly equal
        self.constants: list[GraphConstant] = []
        self.steps: list[GraphStep] = []
        for i, (node, member) in enumerate(zip(after.ensembles, members, strict=True)):
            scores, labels, places = range(PER_MEMBER * i, PER_MEMBER * (i + 1))
            self.numbers[node.output[-1]] = scores
            if member.labels:
                self.numbers[node.output[0]] = labels
                self.labels[node.output[0]] = _Labels(member.labels, places)

    def read(self) -> GraphProgram:
        # constants come before the outputs of steps, but their number is known last
        for node in self.after.nodes:
            for name in node.input:
                self._take_constant(name)
        self._take_texts()
        self._extra = {id(node): self._own_constants(node) for node in self.after.nodes}
        self.count = PER_MEMBER * len(self.members) + len(self.constants)
        for node in self.after.nodes:
            self._take(node)
        return GraphProgram(self.members, (*self.constants,), (*self.steps,), ())

    def moves_to(self, program: GraphProgram, numbers: Mapping[int, int]) -> None:
        """Go on with a program whose values have other numbers."""
        self.members, self.alike = program.members, True
        self.constants, self.steps = [*program.constants], [*program.steps]
        known = self.numbers.items()
        self.numbers = {name: numbers[i] for name, i in known if i in numbers}
        self.count = max(numbers.values()) + 1

    def _take_texts(self) -> None:
        """Note the labels of several targets, which are one list here."""
        lists = [member.labels for member in self.members]
        lists += [c.values for c in self.constants if c.dtype == "object"]
        texts = [labels for labels in lists if labels and isinstance(labels[0], str)]
        self.texts = tuple(sorted({text for labels in texts for text in labels}))
        if texts:
            keys, places = np.array(self.texts, object), np.arange(len(self.texts) + 1)
            self._table_of_texts = self._add_constant(keys), self._add_constant(places)

    def _take_constant(self, name: str) -> None:
        if name and name not in self.numbers:
            array = self.after.constant(name)
            if array is not None:
                self.numbers[name] = self._add_constant(array)

    def _add_constant(self, array: Array) -> int:
        if array.dtype.kind == "O":
            texts = [x.decode() if isinstance(x, bytes) else str(x) for x in array.flat]
            array = np.array(texts, object).reshape(array.shape)
        elif array.dtype.kind not in "fib":
            damaged(f"a constant after the trees holds {array.dtype} values")
        self.constants.append(GraphConstant.of(array))
        return PER_MEMBER * len(self.members) + len(self.constants) - 1

    def _own_constants(self, node: Any) -> tuple[int, ...]:
        """Return the constants that a node has as attributes."""
        if node.op_type == "ConstantOfShape":
            return (self._add_constant(self._attributes(node)["value"]),)
        if node.op_type == "LabelEncoder":
            return tuple(map(self._add_constant, self._table(node)))
        if node.op_type not in ("LinearClassifier", "LinearRegressor"):
            return ()
        at = self._attributes(node)
        weights = np.asarray(at.get("coefficients", []), np.float32)
        shift = np.asarray(at.get("intercepts", []), np.float32)
        if not len(shift) or len(weights) % len(shift):
            self._refuse(node, "has no intercepts, or weights that do not fit them")
        table = weights.reshape(len(shift), -1)
        return self._add_constant(table), self._add_constant(shift)

    def _table(self, node: Any) -> tuple[Array, Array]:
        """Return LabelEncoder's sorted keys, and their values with the default."""
        at = self._attributes(node)
        for name, dtype, default in (
            ("float", np.float32, -0.0),
            ("int64", np.int64, -1),
        ):
            keys, values = (at.get(n, []) for n in ("keys_int64s", f"values_{name}s"))
            if len(keys) and len(keys) == len(values):
                _, first = np.unique(keys, return_index=True)  # of equal keys
                other = at.get(f"default_{name}", default)
                listed = np.asarray(values, dtype)[first]
                return np.asarray(keys)[first], np.append(listed, dtype(other))
        return self._refuse(node, "looks up other values than int64 numbers")

    def _attributes(self, node: Any) -> Mapping[str, Any]:
        return self.after.attributes(node)

    def _refuse(self, node: Any, why: str) -> NoReturn:
        raise UnsupportedModelError(f"The {title_of(node)} {why}; {_ADVICE}.")

    def _take(self, node: Any) -> None:
        kind = node.op_type
        inputs = [self.numbers.get(name, -1) for name in node.input]
        if any(name and name not in self.numbers for name in node.input):
            self._refuse(node, "computes with the rows and with what the trees answer")
        self._take_labels(node, inputs)
        if node.domain == ML and kind == "ZipMap":
            self.maps.append(self._attributes(node))
            self.numbers[node.output[0]] = inputs[0]
        elif kind == "SequenceConstruct":
            self.lists[node.output[0]] = [*node.input]
        elif kind in ("LinearClassifier", "LinearRegressor"):
            self._take_linear(node, inputs[0])
        elif kind in ENSEMBLES:
            self._take_trees(node, inputs[0])
        elif kind == "Normalizer":
            norm = self._attributes(node).get("norm", b"MAX").decode()
            self._step(node, norm, inputs, {})
        elif kind == "LabelEncoder":
            self._step(node, "Lookup", [*inputs, *self._extra[id(node)]], {})
        elif node.domain in ("", "ai.onnx", ML) and kind in OPERATORS:
            plain = {} if kind == "ConstantOfShape" else self._attributes(node)
            at = {name: _as_tuple(value) for name, value in plain.items()}
            at |= {"parts": (len(node.output),)} if kind == "Split" else {}
            self._step(node, kind, [*inputs, *self._extra[id(node)]], at)
        else:
            self._refuse(node, "is no operator that skforge knows after trees")

    def _take_labels(self, node: Any, inputs: Sequence[int]) -> None:
        """Note that a node takes labels from a list, or keeps them as they are."""
        kind, first = node.op_type, next(iter(node.input), "")
        if first in self.labels and kind in _SAME:
            self.labels[node.output[0]] = self.labels[first]
        labels = self.after.constant(first) if kind == "ArrayFeatureExtractor" else None
        if labels is not None and labels.dtype.kind in "iO" and labels.ndim == 1:
            names = self.constants[inputs[0] - PER_MEMBER * len(self.members)].values
            self.labels[node.output[0]] = _Labels(names, inputs[1])

    def _step(self, node: Any, operator: str, inputs: Any, attributes: Any) -> None:
        n_outputs = len(node.output)
        title = title_of(node)
        self.steps.append(GraphStep(title, operator, (*inputs,), n_outputs, attributes))
        for name in node.output:
            self.numbers[name] = self.count
            self.count += 1

    def _take_trees(self, node: Any, read: int) -> None:
        program = GraphProgram(self.members, (*self.constants,), (*self.steps,), ())
        (array,) = self._tried(GraphRunner(program), (read,))
        if array.dtype.kind != "f":
            self._refuse(node, f"reads {array.dtype} values that other nodes compute")
        forest = self.forest_of(node, array.dtype)
        text = {"forest": (text_of(forest),)}
        scores, labels, places = range(self.count, self.count + 3)
        n_outputs = 1
        self.numbers[node.output[-1]] = scores
        if names := member_of(forest).labels:
            self.numbers[node.output[0]], n_outputs = labels, 3
            self.labels[node.output[0]] = _Labels(names, places)
        step = GraphStep(title_of(node), "Trees", (read,), n_outputs, text)
        self.steps.append(step)
        self.count += n_outputs

    def _take_linear(self, node: Any, scores: int) -> None:
        post = self._attributes(node).get("post_transform", b"NONE")
        if post not in _POSTS:
            self._refuse(node, f"has the post transform {post.decode()!r}")
        read = (scores, *self._extra[id(node)])
        for operator in ("Linear", *_POSTS[post]):
            self.steps.append(GraphStep(title_of(node), operator, read, 1, {}))
            read = (self.count,)
            self.count += 1
        (self.numbers[node.output[-1]],) = read

    # ------------------------------------------------------------ answers

    def with_answers(
        self, program: GraphProgram
    ) -> tuple[GraphProgram, tuple[str | int, ...], Task]:
        runner = GraphRunner(program)
        scores: list[tuple[int, ...]] = []
        labels: tuple[str | int, ...] = ()
        places = -1
        for name in self.after.outputs:
            if name in self.labels:
                labels, places = self.labels[name]
                continue
            names = self.lists.get(name, [name])
            if any(each not in self.numbers for each in names):
                damaged(f"no node makes the output {name[:60]!r}")
            numbers = tuple(self.numbers[each] for each in names)
            arrays = self._tried(runner, numbers)
            if arrays[0].dtype.kind == "f":
                scores.append(numbers)
            elif arrays[0].dtype == np.int64 and len(numbers) == 1 and places < 0:
                (places,) = numbers
            elif arrays[0].dtype == object and arrays[0].size > _TRIED and places < 0:
                labels, places = self.texts, self._places_of(numbers)
            else:
                raise UnsupportedModelError(
                    f"The output {name[:60]!r} holds {arrays[0].dtype} values, and "
                    "skforge answers with float scores and int64 labels, or texts; "
                    "give it the scikit-learn model that was converted."
                )
        if len(scores) > 1 and len(scores) == len(labels):  # as of ZipMap's columns
            scores = [self._joined([number for (number,) in scores])]
        if len(scores) != 1:
            raise UnsupportedModelError(
                f"The graph has {len(scores)} outputs with scores, and skforge answers "
                "with one; give it a graph with one of them."
            )
        self._check_labels(labels)
        steps = (*self.steps,)
        known = replace(program, steps=steps, scores=scores[0], places=places)
        return self._with_task(known, labels)

    def _with_task(
        self, program: GraphProgram, labels: tuple[str | int, ...]
    ) -> tuple[GraphProgram, tuple[str | int, ...], Task]:
        runner, places = GraphRunner(program), program.places
        first, *others = self._tried(runner, program.scores)
        width = first.shape[-1] if first.ndim > 1 else 1
        (chosen,) = self._tried(runner, (places,)) if places >= 0 else [first]
        flat = {array.ndim for array in (first, *others)} <= {1, 2} or not others
        if not flat or len(chosen.reshape(len(chosen), -1)) != _TRIED:
            raise UnsupportedModelError(
                "The graph's answers are not one for each row; give skforge the "
                "scikit-learn model that was converted."
            )
        one: Task = "binary" if len(labels) == 2 else "multiclass"
        task: Task = one if labels and chosen.size == _TRIED else "multilabel"
        known = replace(program, width=width)
        return known, labels, task if places >= 0 else "regression"

    def _places_of(self, texts: tuple[int, ...]) -> int:
        """Add a step that numbers the labels of several targets."""
        inputs = (*texts, *self._table_of_texts)
        self.steps.append(GraphStep("labels", "Lookup", inputs, 1, {}))
        self.count += 1
        return self.count - 1

    def _joined(self, columns: Sequence[int]) -> tuple[int]:
        """Add steps that put lists of scores side by side."""
        first = self.count
        for column in columns:
            step = "the columns", "Unsqueeze", (column,), 1, {"axes": (1,)}
            self.steps.append(GraphStep(*step))
        made = tuple(range(first, first + len(columns)))
        join = GraphStep("the columns", "Concat", made, 1, {"axis": (1,)})
        self.steps.append(join)
        self.count += len(columns) + 1
        return (self.count - 1,)

    def _check_labels(self, labels: tuple[str | int, ...]) -> None:
        if len({*labels}) < len(labels):
            damaged("the labels of the graph's answers are there twice")
        for at in self.maps:
            texts = [x.decode() for x in at.get("classlabels_strings", [])]
            known = [*texts, *map(int, at.get("classlabels_int64s", []))]
            if labels and known != [*labels]:
                raise UnsupportedModelError(
                    f"A ZipMap gives the scores the labels {str(known)[:60]}, which "
                    "are not exactly those of the answers; export the model without "
                    "ZipMap."
                )

    def _tried(self, runner: GraphRunner, wanted: tuple[int, ...]) -> list[Array]:
        """Return values for some rows of scores; refuse a graph that mixes rows."""
        width = self.members[-1].end
        normal = np.random.default_rng(0).normal(size=(_TRIED, width))
        raw = abs(normal / 2).astype(self.dtype)
        if self.alike:
            raw[:] = raw[:, :1]
        try:
            every = runner(raw, wanted)
            alone = [runner(row[None], wanted) for row in raw]
        except UnsupportedModelError:  # a ValueError
            raise
        except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidModelError(
                f"The nodes after the trees do not fit each other ({error}); the model "
                "is damaged, export it again."
            ) from error
        for i, array in enumerate(every):
            parts = [answers[i] for answers in alone]
            rows = np.concatenate(parts, rows_axis(array))
            alike = array.shape == rows.shape
            if alike and array.dtype.kind == "f":
                alike = np.allclose(array, rows, 1e-4, 1e-5, equal_nan=True)
            if not alike or (array.dtype.kind in "iO" and (array != rows).any()):
                raise UnsupportedModelError(
                    "The nodes after the trees compute with several rows at once; give "
                    "skforge the scikit-learn model that was converted."
                )
        return every


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bytes):
        return (value.decode(),)
    return tuple(np.asarray(value).reshape(-1).tolist())
