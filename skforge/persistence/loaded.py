"""A loaded ``CompiledForest`` in a process that has not imported scikit-learn."""

from __future__ import annotations

from typing import Any

from skforge.persistence.ready import Becoming, change_class
from skforge.prediction.answering import Answering


class LoadedForest(Becoming, Answering):
    """Answers as a ``CompiledForest``, and becomes one where an estimator is needed.

    Importing scikit-learn takes longer than everything else that a loaded model does.
    It is asked for by ``fit``, ``get_params``, ``clone``, pickles, the repr, and all
    that is not a method or attribute of a fitted model; then the object changes its
    class, and keeps its state.
    """

    def _become(self) -> Any:
        if type(self) is LoadedForest:
            from skforge.estimators import CompiledForest

            change_class(self, CompiledForest)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            theirs = name.startswith(("__sklearn", "_repr_"))
            theirs = theirs or not (name.startswith("_") or name.endswith("_"))
            # a method that our class has is one that the model does not offer
            if not theirs or hasattr(type(self), name):
                raise
        return getattr(self._become(), name)
