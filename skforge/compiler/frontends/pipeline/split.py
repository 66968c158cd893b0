"""Divides a pipeline: steps that run in their library, and steps that fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from skforge.compiler.frontends.base import is_pipeline, last_step, unwrap
from skforge.compiler.frontends.members import fitted_members, is_wrapper, with_members
from skforge.compiler.frontends.pipeline import transformers
from skforge.compiler.frontends.pipeline.branches import Branch, branched
from skforge.exceptions import UnsupportedModelError


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

        >>> one = Part(0, "scaler", "StandardScaler", "folded into the trees", "")
        >>> print(Split(None, (one, Part(1, "tree", "ExtraTree", "compiled", ""))))
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
        for inner, child, _ in transformers.inside(step):
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
