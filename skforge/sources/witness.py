"""Notices that a model is no longer the one that was compiled.

A forest that is fitted again, or trained further, changes in place, while what was
compiled of it does not: attributes and answers taken from both would not fit.
"""

from __future__ import annotations

from typing import Any

from skforge.exceptions import InvalidModelError
from skforge.sources.find import adapter_of
from skforge.sources.stored_model import StoredModel


class Witness:
    """A model, and what of it another fit would replace.

    It sees other trees, more trees and fewer, but not numbers changed inside a tree
    of scikit-learn, nor another XGBoost model of as many rounds loaded into the same
    Booster: to see these takes as long as reading the model.

    Parameters
    ----------
    model : object
        What was compiled; a path, a ModelProto and a Forest have nothing to replace.
    """

    __slots__ = ("_adapter", "_model", "_seen")

    def __init__(self, model: Any) -> None:
        stored = isinstance(model, StoredModel)  # plain data, which nobody trains
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
