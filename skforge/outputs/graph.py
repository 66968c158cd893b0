"""Computes what an ONNX graph makes of its tree ensembles' answers.

A program is the nodes of the graph after the trees, in their order, as data that a
forest keeps as text (``OutputSpec.graph``). Its values have numbers: first the scores
and labels of each ensemble, then constants, then the outputs of each step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.outputs import OutputSpec
from skforge.outputs.graph_members import GraphMember, answers_of_trees
from skforge.outputs.graph_operators import OPERATORS, UnknownError
from skforge.runtime.records import plain_in, plain_out

#: Values of a member: its scores, its labels, and the numbers of these.
PER_MEMBER = 3
#: Rows of a block: a multiple of four, as sums of rows depend on the place in memory.
_BLOCK = 1024
_MOST = 1 << 26  # values of a step
#: Makes machine code of a runner's values; :mod:`skforge.engine.graph_routine` puts it
#: here.
MACHINE_CODE: dict[str, Callable[..., Any]] = {}
_OPERATORS = {**OPERATORS, "Trees": answers_of_trees}


@dataclass(frozen=True)
class GraphConstant:
    dtype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]

    @staticmethod
    def of(array: Array) -> GraphConstant:
        flat = array.reshape(-1).tolist()
        return GraphConstant(str(array.dtype), array.shape, tuple(flat))

    @property
    def array(self) -> Array:
        return np.array(self.values, self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class GraphStep:
    name: str  # how errors call it
    operator: str
    inputs: tuple[int, ...]  # -1 for one that is absent
    n_outputs: int
    attributes: Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class GraphProgram:
    members: tuple[GraphMember, ...]
    constants: tuple[GraphConstant, ...]
    steps: tuple[GraphStep, ...]
    #: The values of ``predict`` of regressors and of ``predict_proba``: several are
    #: arrays of a list.
    scores: tuple[int, ...]
    #: The value with the numbers of the labels, or with labels that are numbers
    #: themselves; -1 of regressors.
    places: int = -1
    width: int = 1  # columns of the scores

    @property
    def text(self) -> str:
        return json.dumps(plain_out(self))


class GraphRunner:
    """Computes values of a program, block by block of rows."""

    def __init__(self, program: GraphProgram) -> None:
        self.program = program
        self.first = PER_MEMBER * len(program.members)
        self.arrays = [constant.array for constant in program.constants]
        #: By the values wanted and the dtype of sums; None: only arrays compute them.
        self._codes: dict[Any, Any] = {}
        #: By the values wanted: which of members, and the steps, each with the number
        #: of its first output and the values that no later step reads.
        self._plans: dict[tuple[int, ...], tuple[set[int], list[Any]]] = {}

    def __call__(self, raw: Array, wanted: tuple[int, ...]) -> list[Any]:
        """Return values for the sums of leaves of some rows."""
        if not len(raw):  # some operators take none: a row tells how answers look
            of_one = self(np.zeros((1, raw.shape[1]), raw.dtype), wanted)
            return [array[:, :0] if rows_axis(array) else array[:0] for array in of_one]
        with np.errstate(all="ignore"):
            # no block of one row at the end: it may have an arithmetic of its own
            starts = [*range(0, max(1, len(raw) - 1), _BLOCK)]
            ends = [*starts[1:], len(raw)]
            pairs = zip(starts, ends, strict=True)
            blocks = [self._of_block(raw[i:end], wanted) for i, end in pairs]
        if len(blocks) == 1:
            return blocks[0]
        parts = [[*each] for each in zip(*blocks, strict=True)]
        return [np.concatenate(each, rows_axis(each[0])) for each in parts]

    def code(self, wanted: tuple[int, ...], raw: Array) -> Any:
        """Return machine code for rows like these, or None: it may answer None, too."""
        key = wanted, raw.dtype, raw.shape[1]
        if key not in self._codes and "of" in MACHINE_CODE:
            self._codes[key] = MACHINE_CODE["of"](self, wanted, raw)
        return self._codes.get(key)

    def plan(self, wanted: tuple[int, ...]) -> tuple[set[int], list[Any]]:
        if wanted not in self._plans:
            self._plans[wanted] = self._plan(wanted)
        return self._plans[wanted]

    def _plan(self, wanted: tuple[int, ...]) -> tuple[set[int], list[Any]]:
        needed, plan, known = {*wanted}, [], {*wanted}
        number = self.first + len(self.arrays)
        number += sum(step.n_outputs for step in self.program.steps)
        for step in reversed(self.program.steps):
            number -= step.n_outputs
            if needed.isdisjoint(range(number, number + step.n_outputs)):
                continue
            needed |= {*step.inputs}
            plan.append((step, number, {*step.inputs} - known - {-1}))
            known |= {*step.inputs}
        return {i for i in needed if 0 <= i < self.first}, plan[::-1]

    def _of_block(self, raw: Array, wanted: tuple[int, ...]) -> list[Any]:
        members, plan = self.plan(wanted)
        values: dict[int, Any] = dict(enumerate(self.arrays, self.first))
        values[-1] = None
        for i in members:
            member = self.program.members[i // PER_MEMBER]
            function = (member.scores, member.named, member.places)[i % PER_MEMBER]
            values[i] = function(raw)
        for step, number, dropped in plan:
            inputs = (values[i] for i in step.inputs)
            try:
                made = _OPERATORS[step.operator](step.attributes, *inputs)
            except UnknownError as error:
                raise UnsupportedModelError(
                    f"The {step.name} {error}, for which skforge does not know the "
                    "bits of onnxruntime; ask onnxruntime itself, or give skforge the "
                    "model that was converted."
                ) from error
            made = made if step.n_outputs > 1 else [made]
            if sum([array.size for array in made]) > _MOST:
                raise UnsupportedModelError(
                    f"The {step.name} makes more values than memory holds."
                )
            for i in dropped:
                del values[i]
            values.update(enumerate(made, number))
        return [values[i] for i in wanted]


def rows_axis(array: Array) -> int:
    """Return the axis of rows: a matrix for each target has them second."""
    return 1 if array.ndim == 3 else 0


@lru_cache(maxsize=64)
def runner_of(text: str | None) -> GraphRunner:
    try:
        program = plain_in(GraphProgram, json.loads(text or ""), "graph")
        return GraphRunner(program)
    except (TypeError, ValueError) as error:
        raise _damaged() from error


def _run(runner: GraphRunner, raw: Any, wanted: tuple[int, ...]) -> list[Any]:
    raw = np.asarray(raw)
    try:
        code = runner.code(wanted, raw) if len(raw) else None
        answer = None if code is None else code(raw)
        return runner(raw, wanted) if answer is None else answer
    except UnsupportedModelError:  # a ValueError
        raise
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise _damaged() from error


def _damaged() -> InvalidModelError:
    return InvalidModelError(
        "What the graph computes of its trees' answers is damaged; save the model "
        "again."
    )


def values(raw: Any, spec: OutputSpec, on: Any) -> Any:
    runner = runner_of(spec.graph)
    scores = _run(runner, raw, runner.program.scores)
    if scores[0].ndim == 3:
        return [*scores[0]]
    return scores[0] if len(scores) == 1 else scores


def places(raw: Any, spec: OutputSpec, on: Any) -> Any:
    runner = runner_of(spec.graph)
    (chosen,) = _run(runner, raw, (runner.program.places,))
    columns = chosen.size // len(raw) if len(raw) else math.prod(chosen.shape[1:])
    return chosen.reshape(len(raw), columns)


def width(spec: OutputSpec, n_outputs: int) -> int:
    return runner_of(spec.graph).program.width
