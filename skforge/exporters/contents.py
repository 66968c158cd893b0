"""The contents of an exported library: outputs, variants, kernels, error codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge._version import __version__
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.outputs.steps import Output, Steps
from skforge.schedule.ranges import SchedulesByRange

#: Return codes of the functions, numbered from 0: the name in C, and the text.
ERRORS = {
    "OK": "success",
    "ERROR_NULL": "a pointer is null",
    "ERROR_COUNT": "a count is negative",
    "ERROR_CPU": "this CPU lacks features that every variant needs",
    "ERROR_MEMORY": "out of memory",
}

#: The outputs that functions of libraries return; the last two are for classifiers.
OUTPUT_OF: dict[str, Output] = {
    "predict_raw": "raw",
    "predict": "transformed",
    "predict_proba": "probabilities",
    "predict_class": "labels",
}

#: What each function returns, as headers and packages say it.
RETURNED = {
    "predict_raw": "margins (raw scores), the sums of the trees before any transform",
    "predict": "the predictions of the model's own booster or estimator, which are "
    "margins after the objective's transform",
    "predict_proba": "the probability of each class",
    "predict_class": "the position of the predicted class in the model's classes_",
    "apply": "the leaf of each tree, numbered as in the source model",
    "predict_contribs": "what each feature contributes to a margin (SHAP values), then "
    "the expected margin; they add up to it. Several outputs follow one another",
}

#: Maximum values and rows of a part when rows are converted in parts.
PART_VALUES, PART_ROWS = 1 << 16, 512
#: Bytes of a cache line, of a handle's header and of a slot's state.
LINE = 64

Ranges = tuple[tuple[int | None, int], ...]


def filled(template: str, **values: object) -> str:
    text = files("skforge.exporters").joinpath("templates", template)
    return Template(text.read_text("utf-8")).substitute(values)


@dataclass(frozen=True, slots=True, eq=False)
class ExportedKernel:
    """A kernel: its symbol, constants, maximum rows per call and scratch.

    ``scratch`` holds the bytes of each piece, rounded up to cache lines.
    """

    symbol: str
    data: tuple[Array, ...]
    most_rows: int | None
    scratch: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ExportedVariant:
    """The kernels for one CPU.

    ``ranges`` holds, for each function, the last batch size of each range (None: no
    limit) and the number of its kernel. The function "" computes sums; ``apply`` and
    ``predict_contribs``, if they are there, have kernels of their own.
    """

    target: Target
    schedules: SchedulesByRange
    kernels: tuple[ExportedKernel, ...]
    ranges: Mapping[str, Ranges]


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """A forest to export as a library.

    ``outputs`` maps each function's name, without a dtype, to its steps; ``left_out``
    maps other functions to the reason they are missing. Portable C has no variants.
    ``texts`` are the codes of columns of texts, as in ``Source.codes``. ``contribs`` is
    the number of outputs whose contributions kernels write, 0 for none. ``encoder``
    encodes categories, ``encoder_sizes`` its first slots. ``libm``: if it calls libm.
    """

    name: str
    forest: Forest
    outputs: Mapping[str, Steps]
    left_out: Mapping[str, str]
    apply: bool
    variants: tuple[ExportedVariant, ...] = ()
    reduction: Reduction = "exact"
    texts: Mapping[int, Any] = field(default_factory=dict)
    contribs: int = 0
    encoder: ExportedKernel | None = None
    encoder_sizes: tuple[int, ...] = ()
    libm: bool = True

    def filled(self, template: str, **values: object) -> str:
        forest = self.forest
        facts = {
            "name": self.name,
            "upper": self.name.upper(),
            "release": __version__,
            "checksum": forest.content_hash(),
            "n_trees": forest.n_trees,
            "n_features": forest.n_features,
            "n_outputs": forest.n_outputs,
            "n_columns": forest.n_columns,
            "n_categories": len(self.categories),
        }
        return filled(template, **facts | values)

    @property
    def cpus(self) -> list[str]:
        return [v.target.cpu for v in self.variants] or ["any CPU"]

    @property
    def categories(self) -> list[int]:
        return list(np.flatnonzero(self.forest.is_category).tolist())

    @property
    def row_dtype(self) -> str:
        return self.forest.input_dtype.name

    @property
    def sum_dtype(self) -> str:
        return self.forest.accumulator_dtype.name

    @property
    def results(self) -> dict[str, tuple[str, int]]:
        sums = self.forest.n_outputs, self.sum_dtype
        shapes = {name: steps.shape(*sums) for name, steps in self.outputs.items()}
        if self.apply and self.forest.n_trees:
            shapes["apply"] = "int32", self.forest.n_trees
        if self.contribs:
            columns = self.forest.n_outputs * (self.forest.n_features + 1)
            shapes["predict_contribs"] = self.sum_dtype, columns
        return shapes

    @property
    def listed(self) -> list[str]:
        """Return the functions of ``check.csv``; of "fast", only scores have limits."""
        return ["predict_raw"] if self.reduction == "fast" else [*self.outputs]

    @property
    def part_rows(self) -> int:
        widest = max(self.forest.n_features, self.forest.n_outputs, 1)
        return max(1, min(PART_ROWS, PART_VALUES // widest))

    @property
    def scratch(self) -> tuple[int, int, int]:
        """Return the bytes of scratch for converted rows, their sums and kernels.

        All are multiples of cache lines. Portable C needs none.
        """
        if not self.variants:
            return 0, 0, 0
        rows = self.forest.n_features * self.forest.input_dtype.itemsize
        sums = self.forest.n_outputs * self.forest.accumulator_dtype.itemsize
        kernels = [sum(k.scratch) for v in self.variants for k in v.kernels]
        # One more line, because vector loads may read past the end.
        wide = [-(-self.part_rows * n // LINE) * LINE + LINE for n in (rows, sums)]
        return wide[0], wide[1], max(kernels, default=0)

    def scratch_rows(self, function: str) -> int:
        sizes = [1 << 62]
        for variant in self.variants:
            first = 1
            for last, k in variant.ranges.get(function, variant.ranges[""]):
                if variant.kernels[k].scratch:
                    sizes.append(first)
                first = (last or 0) + 1
        return min(sizes)
