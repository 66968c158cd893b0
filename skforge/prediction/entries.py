"""Compiled calls under the estimator's methods: no validation, no NumPy transforms.

A compiled entry point takes an array that the source would take without a word, and
answers in the source's values; anything else it declines, and the ordinary path, which
warns and raises as the source does, goes on. An entry is used only after it has given
the ordinary path's own bits on rows drawn around the forest's thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skforge.compiler.forest.reference import draw_rows
from skforge.compiler.outputs.onnx import is_onnx
from skforge.compiler.runtime.entry.entry import Output
from skforge.compiler.runtime.module import CompiledModule

Entry = Callable[[Any], Any]

#: Rows on which an entry has to agree with the ordinary path, alone and together.
CHECKED_ROWS = 24


def build_entry(
    module: CompiledModule,
    source: Any,
    method: str,
    ordinary: Entry,
    n_jobs: int | None,
    classes: Any = None,
) -> Entry | None:
    """Return a compiled call for a method, or None where there is none.

    Parameters
    ----------
    module : CompiledModule
        The compiled forest.
    source : Source
        Its ``declines`` says which values the source refuses; None: it has something
        to say about every array.
    method : str
        What is called: ``predict``, ``predict_proba``, ``predict_raw``,
        ``decision_function`` or ``score_samples``.
    ordinary : callable
        The method without an entry.
    n_jobs : int or None
        Threads the ordinary path may use for more rows than are worth it here.
    classes : ndarray, list of ndarray or None
        The labels that ``predict`` returns; None for 0, 1, and so on.
    """
    refused = getattr(source, "declines", None)
    output = _output(module, method)
    if refused is None or output is None:
        return None
    labels = classes if isinstance(classes, np.ndarray) else None
    entry = module.entry(output, refused, n_jobs=n_jobs, classes=labels)
    if entry is None:
        return None
    forest = module.forest
    # Batches that go to a GPU are not an entry's.
    most = min(CHECKED_ROWS, getattr(module, "gpu_min_rows", CHECKED_ROWS + 1) - 1)
    if most < 1:
        return None
    with np.errstate(all="ignore"):
        rows = draw_rows(forest, most, 0).astype(forest.input_dtype)
    if refused != "nothing":
        rows = np.nan_to_num(rows)
    for part in (rows[:1], rows):
        wanted, found = ordinary(part), entry(part)
        if not (
            isinstance(wanted, np.ndarray)
            and isinstance(found, np.ndarray)
            and wanted.dtype == found.dtype
            and np.array_equal(wanted, found)
        ):
            return None
    made: Entry = entry
    return made


def _output(module: CompiledModule, method: str) -> Output | None:
    """Return what an entry has to compute for a method, if one can."""
    forest = module.forest
    classifies = forest.classifies
    if method == "predict_raw":
        return "raw"
    if method == "predict":
        if not classifies:
            return "transformed"
        return "labels"
    if method == "decision_function":
        boosts = forest.transform.kind.startswith(("gb_", "hist_"))
        isolates = forest.transform.kind == "path_length"
        return "raw" if boosts else "decision" if isolates else None
    if method == "score_samples":
        return "scores"
    if len(forest.output_sizes) > 1:
        return None
    if is_onnx(forest):
        return "transformed"
    # a forest of scikit-learn votes: its averages are probabilities already
    votes = forest.source == "sklearn" and forest.transform.kind == "identity"
    if votes:
        return "raw" if forest.n_outputs > 1 else None
    return "both_classes" if forest.n_outputs == 1 else "transformed"
