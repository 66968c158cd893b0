"""A loaded ``CompiledForest`` in a process that has not imported scikit-learn."""

from __future__ import annotations

import sys
from typing import Any

from skforge.prediction.answering import Answering


class LoadedForest(Answering):
    """Answers as a ``CompiledForest``, and becomes one where an estimator is needed.

    Importing scikit-learn takes longer than everything else that a loaded model does.
    It is asked for by ``fit``, ``get_params``, ``clone``, pickles, the repr, and all
    that is not a method or attribute of a fitted model; then the object changes its
    class, and keeps its state.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """``CompiledForest`` for isinstance, in a process that may know estimators."""
        return _estimator_class() if "sklearn.base" in sys.modules else type(self)

    def _estimator(self) -> Any:
        """Become a ``CompiledForest``, and return it."""
        if type(self) is LoadedForest:
            vars(object)["__class__"].__set__(self, _estimator_class())
        return self

    def __getattr__(self, name: str) -> Any:
        """Return a fitted attribute, or what only an estimator has."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            theirs = name.startswith(("__sklearn", "_repr_"))
            theirs = theirs or not (name.startswith("_") or name.endswith("_"))
            # a method that our class has is one that the model does not offer
            if not theirs or hasattr(type(self), name):
                raise
        return getattr(self._estimator(), name)

    def __repr__(self) -> str:
        """Return the repr of the ``CompiledForest``."""
        return repr(self._estimator())

    def __dir__(self) -> list[str]:
        """Return the names of a ``CompiledForest``."""
        return dir(self._estimator())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what ``CompiledForest`` is pickled as."""
        return self._estimator().__reduce_ex__(protocol)


def _estimator_class() -> type[Any]:
    from skforge.estimators import CompiledForest

    return CompiledForest
