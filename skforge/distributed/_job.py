"""Prediction jobs: checked once by the caller, run by every worker on its blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skforge.compiler.runtime.cpu.threads import resolve_n_jobs
from skforge.distributed._artifact import Artifact, KeepEstimator, pack
from skforge.distributed._frames import rows_of_frame
from skforge.distributed._worker import loaded
from skforge.exceptions import InvalidInputError
from skforge.prediction.answers import Answer, Array, as_array, described, n_features
from skforge.prediction.answers import feature_names as names_of

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest
    from skforge.estimators import CompiledForest


@dataclass(frozen=True, slots=True)
class Job:
    """A model's method and everything workers need to run it, as plain data."""

    artifact: Artifact
    method: str
    n_jobs: int | None
    answer: Answer
    n_features: int
    feature_names: tuple[str, ...] | None
    category_names: tuple[tuple[str | int, ...], ...]
    #: Whether the model matches categories by name, so frames may hold them as text.
    categories: bool
    #: Whether the model reads texts, as pipelines do.
    texts: bool = False

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Return the token for Dask, which is the same in every process."""
        return type(self).__name__, self.artifact.checksum, self.method, self.n_jobs

    def of_rows(self, rows: Any) -> Array:
        """Return the result for rows without names; accepts 0 rows."""
        if not rows.shape[0]:
            return self.answer.empty()
        model = loaded(self.artifact, self.n_jobs)
        return as_array(getattr(model, self.method)(rows))

    def of_frame(self, frame: Any) -> Array:
        """Return the result for a frame whose columns are the features, in order."""
        if not len(frame):
            return self.answer.empty()
        return self.of_rows(
            rows_of_frame(
                frame,
                self.feature_names,
                self.categories,
                self.category_names,
                self.texts,
            )
        )

    def columns_of(
        self, given: Iterable[Any], wanted: Sequence[Any] | None
    ) -> list[Any]:
        """Return the feature columns in the model's order.

        These are ``wanted``, else the model's feature names, else all ``given``.
        """
        there = list(given)
        columns: list[Any] = list(self.feature_names or there)
        if wanted is not None:
            if isinstance(wanted, str):
                raise InvalidInputError(
                    f"columns must be a list of names. Got {wanted!r} instead; use "
                    f"[{wanted!r}] for one column."
                )
            columns = list(wanted)
        missing = [name for name in columns if name not in there]
        if missing:
            raise InvalidInputError(
                f"The rows lack the columns {_listed(missing)}; they have "
                f"{_listed(there)}. Name the columns that are the model's features, "
                "in its order, with columns=[...]."
            )
        self.check_width(len(columns))
        return columns

    def check_width(self, n_columns: int) -> None:
        """Raise InvalidInputError unless the columns are as many as the features."""
        if n_columns != self.n_features:
            raise InvalidInputError(
                f"The model was trained on {self.n_features} features, but the rows "
                f"have {n_columns} columns."
            )


def job(
    model: CompiledForest | Artifact | str | os.PathLike[str],
    method: str,
    n_jobs: int | None,
    keep_estimator: KeepEstimator,
) -> Job:
    """Return a job after all checks that need no rows."""
    from skforge.compiler.frontends.base import is_pipeline
    from skforge.sources.delegation import model_of, start_of

    resolve_n_jobs(n_jobs)
    artifact = pack(model, keep_estimator=keep_estimator)
    here = loaded(artifact, n_jobs)
    names = names_of(here)
    forest = here.forest_
    model_here = model_of(here)
    pipeline = is_pipeline(model_here) or getattr(model_here, "kind", "") == "pipeline"
    own = start_of(here) is None  # the forest's columns are those of the rows
    return Job(
        artifact,
        method,
        n_jobs,
        described(here, method),
        n_features(here),
        None if names is None else tuple(names),
        forest.category_names if own and not pipeline else (),
        own and not pipeline and _by_name(forest),
        pipeline,
    )


def _by_name(forest: Forest) -> bool:
    """Return whether the model matches categories by name.

    XGBoost and LightGBM models trained on numbers use positions in each frame's own
    category list, which differs between the parts of a table.
    """
    if forest.source in ("xgboost", "lightgbm"):
        return bool(forest.category_names)
    return any(forest.category_names) or int(forest.category_offset[-1]) > 0


def _listed(names: Sequence[Any]) -> str:
    """Return the first five names, and the number of others."""
    shown = ", ".join(repr(name) for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown or "none"
