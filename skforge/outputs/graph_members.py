"""The tree ensembles of a graph: how they answer, and those that read answers."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.forest.record import forest_in, forest_out
from skforge.forest.reference import reference_raw
from skforge.outputs import onnx
from skforge.outputs.graph_operators import NodeAttributes, UnknownError
from skforge.outputs.library import HOST

#: What adds leaves. :mod:`skforge.engine.graph_trees` puts machine code in its place.
SUMS: dict[str, Callable[[Forest, Array], Array]] = {"trees": reference_raw}
LABELS = {"above_bound": onnx.above_bound, "first_greatest": onnx.first_greatest}


@dataclass(frozen=True)
class GraphMember:
    """A tree ensemble: its columns of the scores, and how it answers with them."""

    begin: int
    end: int
    divisor: int
    outputs: OutputSpec
    labels: tuple[str | int, ...]

    def scores(self, raw: Array) -> Array:
        sums = raw[:, self.begin : self.end]
        sums = sums / sums.dtype.type(self.divisor) if self.divisor > 1 else sums
        return np.asarray(onnx.values(sums, self.outputs, HOST))

    def places(self, raw: Array) -> Array:
        """Return the numbers of the labels."""
        choose = LABELS[self.outputs.labels]
        chosen = choose(raw[:, self.begin : self.end], self.outputs, HOST)
        return np.asarray(chosen, np.int64)[:, 0]

    def named(self, raw: Array) -> Array:
        kind = object if isinstance(self.labels[0], str) else np.int64
        return np.array(self.labels, kind)[self.places(raw)]


def member_of(forest: Forest, begin: int = 0) -> GraphMember:
    labels: Any = forest.class_labels
    end = begin + forest.n_outputs
    return GraphMember(begin, end, forest.divisor, forest.outputs, labels)


def text_of(forest: Forest) -> str:
    """Return a forest as text: the attribute of an operator."""
    arrays: dict[str, Array] = {}
    record = forest_out(forest, arrays)
    stored = {
        name: (array.dtype.str, array.shape, b64encode(array.tobytes()).decode())
        for name, array in arrays.items()
    }
    return json.dumps({"record": record, "arrays": stored})


@lru_cache(maxsize=64)
def forest_of(text: str) -> tuple[Forest, GraphMember]:
    stored = json.loads(text)
    arrays = {
        name: np.frombuffer(b64decode(data), dtype).reshape(shape)
        for name, (dtype, shape, data) in stored["arrays"].items()
    }
    forest = forest_in(stored["record"], arrays)
    # averages are divided where they answer
    return replace(forest, divisor=1), member_of(forest)


def answers_of_trees(at: NodeAttributes, x: Array) -> Any:
    """Return the scores of a forest that reads answers, and of classes their labels."""
    forest, member = forest_of(at["forest"][0])
    if x.dtype != forest.input_dtype or x.ndim != 2 or x.shape[1] < forest.n_features:
        raise UnknownError(f"reads {x.ndim}-dimensional {x.dtype} values")
    sums = SUMS["trees"](forest, x[:, : forest.n_features])
    scores = member.scores(sums)
    return (
        [scores, member.named(sums), member.places(sums)] if member.labels else scores
    )
