"""Detects that a model has changed since it was compiled.

Refitting or further training changes a model in place, but not its compiled forest.
Attributes from one and answers from the other would then not match.
"""

from __future__ import annotations

from typing import Any

from skforge.exceptions import InvalidModelError
from skforge.sources.find import adapter_of
from skforge.sources.stored_model import StoredModel


class Witness:
    """Remembers the parts of a model that another fit would replace.

    It detects replaced, added and removed trees. It does not detect numbers edited
    inside a scikit-learn tree, or another XGBoost model with as many rounds loaded into
    the same Booster: detecting these would take as long as reading the model.

    Parameters
    ----------
    model : object
        The model that was compiled. Paths, ModelProtos and Forests do not change.
    """

    __slots__ = ("_adapter", "_model", "_seen")

    def __init__(self, model: Any) -> None:
        stored = isinstance(model, StoredModel)  # plain data, which cannot be trained
        self._model, self._adapter = model, None if stored else adapter_of(model)
        self._seen = self._traces()

    def _traces(self) -> list[Any]:
        return [] if self._adapter is None else self._adapter.traces(self._model)

    def check(self) -> None:
        """Raise ``InvalidModelError`` if the model has changed."""
        now = self._traces()
        same = len(now) == len(self._seen) and all(map(_same, now, self._seen))
        if not same:
            raise InvalidModelError(
                f"The {type(self._model).__name__} has changed since it was compiled: "
                "it was fitted again, trained further or edited. Its attributes and "
                "answers no longer fit the compiled predictions; call fit of the "
                "CompiledForest again."
            )


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    plain = isinstance(one, (int, float, str)) and isinstance(other, type(one))
    return plain and bool(one == other or (one != one and other != other))  # NaN
