"""Divides a pipeline: steps that run in their library, and steps that fold."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from skforge.exceptions import UnsupportedModelError
from skforge.frontends.base import class_name, is_pipeline, last_step, unwrap
from skforge.frontends.members import fitted_members, is_wrapper, with_members
from skforge.frontends.pipeline import transformers


@dataclass(frozen=True, slots=True)
class StepPart:
    """A step, or a transformer inside one: where it runs, and why."""

    depth: int
    name: str
    kind: str
    where: str
    why: str
    blamed: bool = False  # whether steps run in their library because of it
    branch: bool = False  # whether it does so although what it is inside of folds


class PipelineSplit(NamedTuple):
    #: How many of its ``divided_steps`` run in their library; None if all fold.
    start: int | None
    #: All steps in order, each followed by the transformers inside it.
    parts: tuple[StepPart, ...]

    def __str__(self) -> str:
        """Return a table with a line for each step.

        >>> one = StepPart(0, "scaler", "StandardScaler", "folded into the trees", "")
        >>> two = StepPart(1, "tree", "ExtraTree", "compiled", "")
        >>> print(PipelineSplit(None, (one, two)))
        step    transformer     where                  why
        scaler  StandardScaler  folded into the trees
          tree  ExtraTree       compiled
        """
        return table_text(("step", "transformer", "where", "why"), self.parts)

    @property
    def summary(self) -> str:
        outer = [part for part in self.parts[:-1] if part.depth == 0]
        folded = sum(part.where.startswith("folded") for part in outer)
        n_outside = len(outer) - folded
        n_outside += sum(part.branch for part in self.parts)
        return f"steps: {n_outside} in their library, {folded} folded"


def table_text(head: tuple[str, ...], parts: Sequence[StepPart]) -> str:
    lines = [head]
    for part in parts:
        name = "  " * part.depth + part.name
        lines.append((name, part.kind, part.where, part.why))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def divides(model: Any) -> bool:
    """Tell whether steps come before the forest: in a pipeline, or in one inside.

    A wrapper of one pipeline passes rows on, as if it were around the last step.
    """
    return is_pipeline(model) or (
        is_wrapper(model)
        and len(inside := fitted_members(model)) == 1
        and divides(unwrap(inside[0]))
    )


def flat_steps(model: Any) -> list[tuple[str, Any]]:
    if not is_pipeline(model):
        *steps, (name, last) = flat_steps(unwrap(fitted_members(model)[0]))
        around = with_members(model, [last])
        for of_rows in ("n_features_in_", "feature_names_in_"):  # before the steps
            vars(around).pop(of_rows, None)
        return [*steps, (name, around)]
    last = last_step(model)
    if not divides(last):
        return list(model.steps)
    name = model.steps[-1][0]
    inner = [(f"{name}__{inner_name}", step) for inner_name, step in flat_steps(last)]
    return [*model.steps[:-1], *inner]


def divided_steps(model: Any) -> list[tuple[str, Any]]:
    """Return all steps; of a ColumnTransformer, what does not fold comes before it."""
    *steps, last = flat_steps(model)
    return [part for name, step in steps for part in branched(name, step)] + [last]


def flat(pipeline: Any) -> Any:
    """Return a pipeline that does the same and does not end in another pipeline."""
    from sklearn.pipeline import Pipeline

    if not divides(last_step(pipeline)):
        return pipeline
    return Pipeline(flat_steps(pipeline))


def rest_of(model: Any, start: int | None) -> Any:
    from sklearn.pipeline import Pipeline

    if start is None:
        return model
    rest = Pipeline(divided_steps(model)[start:])
    return rest if len(rest.steps) > 1 else last_step(rest)


def refusals(pipeline: Any) -> dict[str, str]:
    why = {}
    for name, step in divided_steps(pipeline)[:-1]:
        if transformers.is_absent(step):
            continue
        if isinstance(step, Branch):
            step = step.transformer
        try:
            for inner, transformer in list(transformers.members(name, step)):
                try:
                    transformers.refuse(inner, transformer)
                except UnsupportedModelError as error:
                    why[inner] = reason(inner, transformer, error)
        except UnsupportedModelError as error:
            why[name] = reason(name, step, error)
    return why


def reason(name: str, transformer: Any, error: Exception) -> str:
    kind = type(transformer).__name__
    text = str(error).partition(". ")[0].removesuffix(".")
    start = f"The step {name!r} of the pipeline, {kind}, "
    return f"{kind} {text.removeprefix(start)}" if text.startswith(start) else text


def divided(
    pipeline: Any, start: int | None, reasons: Mapping[str, str]
) -> PipelineSplit:
    *steps, (last_name, last) = divided_steps(pipeline)
    n_before = start or 0
    parts: list[StepPart] = []
    branches: dict[str, Any] = {}

    def add(name: str, path: str, step: Any, depth: int, folds: bool, why: str) -> None:
        branch = folds and path in branches
        folds = folds and not branch
        kind = step if isinstance(step, str) else type(step).__name__
        where = "folded into the trees"
        if not folds:
            ours = type(step).__module__.startswith("sklearn.")
            where = "runs in scikit-learn" if ours else "runs as it is"
        blamed = [reason for reason in reasons if reason.startswith(f"{path}__")]
        if own := not folds and path in reasons:
            why = reasons[path]
        elif not folds and blamed:
            why = f"{blamed[-1].removeprefix(path + '__')!r} in it cannot be folded"
        parts.append(StepPart(depth, name, kind, where, why, own, branch))
        for inner, child, _ in transformers.children(step):
            add(inner, f"{path}__{inner}", child, depth + 1, folds, "")

    for i, (name, step) in enumerate(steps):
        if isinstance(step, Branch):
            branches[name] = step
            continue
        folds, before = i >= n_before, steps[n_before - 1][0]
        why = "" if folds or name == before else f"comes before {before!r}"
        for path, branch in branches.items():
            step = branch.whole if path.startswith(f"{name}__") else step
        add(name, name, step, 0, folds, why)
    parts.append(StepPart(0, last_name, type(last).__name__, "compiled", ""))
    return PipelineSplit(start, tuple(parts))


# ------------------------------------------------------------ branches

# A ColumnTransformer of which only some transformers fold: each of the others is a step
# of its own, which adds its outputs to the rows as further columns; a copy of the
# ColumnTransformer passes these on.

StepList = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    #: The ColumnTransformer as it was, in a copy: the steps are kept for as long as it.
    whole: Any
    transformer: Any
    columns: Any  # as ``whole`` chooses them: labels or places, a single one for 1-D
    read: frozenset[str] | None  # the names of frames that it takes; None: arrays
    width: int  # the columns of arrays
    names: tuple[str, ...]  # of the further columns

    def transform(self, X: Any) -> Any:
        """Return rows with the outputs behind; None for rows of other kinds."""
        from sklearn.utils import _safe_indexing

        if self.read is None:
            plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2
            if not plain or X.shape[1] != self.width:
                return None
        elif not _is_frame(X) or not X.columns.is_unique:
            return None
        else:
            names = frozenset(X.columns)
            known = self.read <= names and names.isdisjoint(self.names)
            if not known or {*map(type, names)} != {str}:
                return None
        out = self.transformer.transform(_safe_indexing(X, self.columns, axis=1))
        if hasattr(out, "tocsr") and not self.whole.sparse_output_:
            out = out.toarray()
        shape = len(X), len(self.names)
        if getattr(out, "shape", None) != shape:
            return None
        if self.read is None:
            whole = type(out) is np.ndarray and out.dtype == np.float64
            return np.hstack([X, out]) if whole else None
        return _beside(X, out, self.names)


def _is_frame(X: Any) -> bool:
    """Tell whether something is pandas' own frame, without an import of pandas."""
    class_ = type(X)
    return class_.__module__.startswith("pandas") and class_.__name__ == "DataFrame"


def _beside(X: Any, out: Any, names: Sequence[str]) -> Any:
    from pandas import DataFrame, concat

    if type(out) is np.ndarray:
        dtypes = [out.dtype]
        columns = DataFrame(out, index=X.index, columns=names)
    elif _is_frame(out):
        dtypes = [*out.dtypes]
        columns = out.set_axis(X.index, axis=0).set_axis(names, axis=1)
    else:
        return None
    known = all(isinstance(d, np.dtype) and d.kind in "fiu" for d in dtypes)
    return concat([X, columns], axis=1) if known else None


#: By ColumnTransformer: the ids of its transformers, and the steps that it makes.
_known: WeakKeyDictionary[Any, tuple[list[int], StepList]] = WeakKeyDictionary()


def branched(name: str, step: Any) -> StepList:
    if class_name(step) != transformers.COLUMNS or not _is_plain(step):
        return [(name, step)]
    ids = [id(child) for _, child, _ in step.transformers_]
    known = _known.get(step)
    if known is None or known[0] != ids:
        known = _known[step] = ids, _branched(name, step)
    steps = known[1]
    return [*steps[:-1], (name, steps[-1][1])] if steps else [(name, step)]


def _is_plain(step: Any) -> bool:
    from sklearn.utils._set_output import _get_output_config

    default = _get_output_config("transform", step)["dense"] == "default"
    is_fitted = hasattr(step, "transformers_") and hasattr(step, "output_indices_")
    return default and step.transformer_weights is None and is_fitted


def _folds(name: str, child: Any) -> bool:
    with suppress(UnsupportedModelError):
        transformers.refuse_members(name, child)
        return True
    return False


def _branched(name: str, step: Any) -> StepList:
    from sklearn.preprocessing import FunctionTransformer

    indices, names = dict(step._transformer_to_input_indices), None
    known = getattr(step, "feature_names_in_", None)
    rest, fitted, width = copy.copy(step), [], int(step.n_features_in_)
    kept = {
        child_name: (child, columns)
        for child_name, child, columns in step.transformers_
        if not isinstance(child, str) and len(indices[child_name])
    }
    chosen = [each for each, (child, _) in kept.items() if not _folds(each, child)]
    if not chosen or len(chosen) == len(kept):
        return []
    places = step.output_indices_
    if any(places[each].stop == places[each].start for each in chosen):
        return []  # what has no columns still widens the dtype of the others
    used = [i for n, t, _ in step.transformers_ if t != "drop" for i in indices[n]]
    names = None if known is None else frozenset(known[used])
    passing = FunctionTransformer(accept_sparse=True, check_inverse=False)
    whole, steps = copy.copy(step), []
    more: list[str] = []
    for child_name, child, columns in step.transformers_:
        if child_name not in chosen:
            fitted.append((child_name, child, columns))
            continue
        if known is not None:
            labels = known[indices[child_name]]
            columns = labels[0] if np.isscalar(columns) else labels
        n_new = places[child_name].stop - places[child_name].start
        new = tuple(f"{child_name}\0{i}" for i in range(n_new))
        branch = Branch(whole, child, columns, names, width, new)
        steps.append((f"{name}__{child_name}", branch))
        indices[child_name] = [*range(width, width + len(new))]
        fitted.append((child_name, passing, indices[child_name]))
        width += len(new)
        more += new
    rest.transformers_, rest._transformer_to_input_indices = fitted, indices
    rest.transformers = [
        (each, passing if each in chosen else child, columns)
        for each, child, columns in step.transformers
    ]
    rest.remainder = passing if "remainder" in chosen else step.remainder
    rest.n_features_in_ = width
    if known is not None:
        rest.feature_names_in_ = np.array([*known, *more], object)
    return [*steps, (name, rest)]


def unbranched(steps: StepList) -> list[Any]:
    """Return transformers in turn; of a ColumnTransformer in parts, the whole."""
    found: list[Any] = []
    for _, step in steps:
        branch = found[-1] if found and isinstance(found[-1], Branch) else None
        if branch is None or isinstance(step, Branch):
            found.append(step)
            continue
        while found and isinstance(found[-1], Branch):
            found.pop()
        found.append(branch.whole)
    return found
