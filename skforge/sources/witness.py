"""Detects that a model has changed since it was compiled.

Refitting or further training changes a model in place, but not its compiled forest.
Attributes from one and answers from the other would then not match.
"""

from __future__ import annotations

from typing import Any

from skforge.exceptions import InvalidModelError
from skforge.sources.find import traces_of


class Witness:
    """Remembers the parts of a model that another fit would replace.

    It detects replaced, added and removed trees. It does not detect numbers edited
    inside a scikit-learn tree, or another XGBoost model with as many rounds loaded into
    the same Booster: detecting these would take as long as reading the model.

    Parameters
    ----------
    model : object
        The model that was compiled. Paths, ModelProtos and Forests do not change.
    start : int, default=None
        Number of the steps of a pipeline that run in their library; None: all fold.
    """

    __slots__ = ("_model", "_seen", "_start")

    def __init__(self, model: Any, start: int | None = None) -> None:
        self._model, self._start = model, start
        self._seen = traces_of(model, start)

    def check(self) -> None:
        """Raise ``InvalidModelError`` if the model has changed."""
        now = traces_of(self._model, self._start)
        same = len(now) == len(self._seen) and all(map(_same, now, self._seen))
        if not same:
            raise InvalidModelError(
                f"The {type(self._model).__name__} has changed since it was compiled: "
                "it was fitted again, trained further or edited. Its attributes and "
                "predictions no longer match the compiled ones; call fit of the "
                "CompiledForest again."
            )


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    plain = isinstance(one, (int, float, str)) and isinstance(other, type(one))
    return plain and bool(one == other or (one != one and other != other))  # NaN
