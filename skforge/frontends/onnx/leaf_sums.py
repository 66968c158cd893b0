"""Moves what a graph computes of single trees, and then adds, into their leaves.

Converters write an isolation forest as trees that answer with the number of a leaf, of
each of which the graph computes a path's length. Here these lengths are the leaves.
Logarithms have other bits for the last rows of a batch than for the others: leaves then
have two numbers, and the operator ``Fours`` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array
from skforge.forest.combine import joined
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.outputs.graph import (
    PER_MEMBER,
    GraphConstant,
    GraphProgram,
    GraphRunner,
    GraphStep,
)
from skforge.outputs.graph_members import GraphMember

#: Operators whose outputs are functions of one number each.
_BY_NUMBER = (
    *("Abs", "Add", "Cast", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity"),
    *("Less", "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Pow", "Sub"),
)
_NOTHING = -0.0  # adding it changes no number, not even -0.0


class SumInLeaves(NamedTuple):
    forest: Forest
    program: GraphProgram
    #: The new numbers of the program's values, by the old ones.
    numbers: Mapping[int, int]


def leaf_sums(forests: Sequence[Forest], program: GraphProgram) -> SumInLeaves | None:
    """Return one forest and what is computed of its sums; None if it is not so."""
    plain = OutputSpec("onnx", 0.0, offsets=(_NOTHING,), probabilities="values")
    for forest in forests:
        spec = forest.outputs
        one = forest.n_trees == forest.n_outputs == forest.divisor == 1
        same = (spec.layout, spec.post, spec.dtype) == ("target", "none", "float32")
        if not (one and same) or forest.class_labels or any(spec.offsets):
            return None
    tail = _tail(program)
    if tail is None:
        return None
    of_sum, order, others = tail
    values = [_of_leaves(forests, program, of_sum, log) for log in ("Fours", "Rest")]
    if any(((v == 0) & np.signbit(v)).any() for v in values):
        return None  # a sum begins with 0.0
    values = values[: 1 + bool((values[0] != values[1]).any())]
    width = len(values)
    members = [
        replace(
            forest,
            leaf_value=np.stack([v[: len(forest.leaf_value), i] for v in values], 1),
            tree_output=np.full(1, -1 if width > 1 else 0, np.int32),
            base=np.zeros(width, np.float32),
            outputs=replace(plain, offsets=(_NOTHING,) * width, layout="columns"),
        )
        for i, forest in enumerate(forests[member] for member in order)
    ]
    forest = joined(members, [0] * len(members), base=np.zeros(width, np.float32))
    return SumInLeaves(forest, *_after_sum(program, of_sum, others, forest))


def _tail(program: GraphProgram) -> tuple[int, list[int], list[Any]] | None:
    """Return the number of the sum over the trees, their order, and the steps after."""
    n_members = len(program.members)
    first = PER_MEMBER * n_members
    number = first + len(program.constants)
    of = {PER_MEMBER * i: i for i in range(n_members)}
    of_sum, order = -1, list[int]()
    others: list[tuple[int, GraphStep]] = []
    for step in program.steps:
        read = [of[i] for i in step.inputs if i in of]
        if not read:
            others.append((number, step))
        elif _is_by_number(step, of, program):
            of[number] = read[0]
        elif (
            step.operator == "Sum" and sorted(read) == [*range(n_members)] and not order
        ):
            of_sum, order = number, read
        else:
            return None
        number += step.n_outputs
    before = range(first)
    if of_sum < 0 or any(i in before for _, step in others for i in step.inputs):
        return None
    return of_sum, order, others


def _is_by_number(step: GraphStep, of: Mapping[int, Any], program: GraphProgram) -> Any:
    first = PER_MEMBER * len(program.members)
    end = first + len(program.constants)
    constants = [program.constants[i - first] for i in step.inputs if first <= i < end]
    trees = {of[i] for i in step.inputs if i in of}
    if len(trees) != 1 or len(constants) + sum(i in of for i in step.inputs) < len(
        step.inputs
    ):
        return False
    if step.operator == "Lookup":
        return step.inputs[0] in of
    if step.operator == "Reshape":
        return [c.values for c in constants] == [(-1, 1)]
    small = all(len(c.values) == 1 and len(c.shape) < 3 for c in constants)
    return step.operator in _BY_NUMBER and small


def _of_leaves(
    forests: Sequence[Forest], program: GraphProgram, of_sum: int, log: str
) -> Array:
    """Return what the sum adds, a column for each tree and a row for each leaf."""
    most = max(len(forest.leaf_value) for forest in forests)
    columns = [np.resize(forest.leaf_value[:, 0], most) for forest in forests]
    steps, number = [], PER_MEMBER * len(forests) + len(program.constants)
    added: tuple[int, ...] = ()
    for step in program.steps:
        known = step.operator == "Log"
        steps.append(replace(step, operator=f"LogOf{log}") if known else step)
        added = step.inputs if number == of_sum else added
        number += step.n_outputs
    runner = GraphRunner(replace(program, steps=(*steps,)))
    return np.hstack(runner(np.stack(columns, 1), added))


def _after_sum(
    program: GraphProgram,
    of_sum: int,
    others: list[tuple[int, GraphStep]],
    forest: Forest,
) -> tuple[GraphProgram, dict[int, int]]:
    first = PER_MEMBER * len(program.members)
    read = {i for _, step in others for i in step.inputs}
    numbers = {-1: -1}
    constants: list[GraphConstant] = []
    for i, constant in enumerate(program.constants, first):
        if i in read:
            numbers[i] = PER_MEMBER + len(constants)
            constants.append(constant)
    count = PER_MEMBER + len(constants)
    numbers[of_sum] = count
    steps = [GraphStep("sum of the trees", "Fours", (0,), 1, {})]
    for number, step in others:
        count += 1
        inputs = tuple(numbers[i] for i in step.inputs)
        for i in range(step.n_outputs):
            numbers[number + i] = count + i
        count += step.n_outputs - 1
        steps.append(replace(step, inputs=inputs))
    member = GraphMember(0, forest.n_outputs, 1, forest.outputs, ())
    parts = (member,), (*constants,), (*steps,), ()
    return GraphProgram(*parts), numbers
