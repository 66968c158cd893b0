"""What a file's model is made of, as far as it is needed: its object and its arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields
from typing import Any

from skforge._container import Container
from skforge._typing import Array
from skforge.forest.forest import Forest
from skforge.forest.record import forest_in, forest_later
from skforge.persistence.ready import Becoming, change_class
from skforge.prediction.answering import Answering
from skforge.prediction.parameters import Parameters
from skforge.runtime import object_cache
from skforge.runtime.libm import on_arm
from skforge.sources.stored_model import StoredModel


class LoadedForest(Becoming, Answering):
    """Answers as a ``CompiledForest``, and becomes one where an estimator is needed.

    Importing scikit-learn takes longer than everything else that a loaded model does.
    It is asked for by ``fit``, ``clone``, pickles, and all that is not a method or
    attribute of a fitted model; then the object changes its class, and keeps its state.
    Where scikit-learn is not installed, it stays as it is.
    """

    _stored: StoredModel

    def _become(self) -> Any:
        if type(self) is LoadedForest:
            from skforge.estimators import CompiledForest

            change_class(self, CompiledForest)
        return self

    def _become_if_possible(self) -> bool:
        with suppress(ImportError):
            return self._become() is not None
        return False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            theirs = name.startswith(("__sklearn", "_repr_"))
            theirs = theirs or not (name.startswith("_") or name.endswith("_"))
            # a method that our class has is one that the model does not offer
            if not theirs or hasattr(type(self), name):
                raise
        try:
            whole = self._become()
        except ImportError as error:
            raise AttributeError(
                f"'CompiledForest' object has no attribute {name!r} where scikit-learn "
                "is not installed"
            ) from error
        return getattr(whole, name)

    # ------------------------------------------ as an estimator does, without one

    def __repr__(self) -> str:
        defaults = {field.name: field.default for field in fields(Parameters)}
        texts = {name: repr(value) for name, value in self.get_params(False).items()}
        changed = (n for n in texts if texts[n] != repr(defaults[n]))
        lines = ["CompiledForest("]
        for part in (f"{name}={texts[name]}," for name in changed):
            if len(lines[-1]) + len(part) > 80:
                lines.append(" " * len("CompiledForest("))
            lines[-1] += part if lines[-1][-1] in " (" else f" {part}"
        return "\n".join(lines).removesuffix(",") + ")"

    def __dir__(self) -> Any:
        return dir(self) if self._become_if_possible() else object.__dir__(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._become_if_possible():
            return self.__reduce_ex__(protocol)
        return object.__reduce_ex__(self, protocol)

    def __copy__(self) -> LoadedForest:
        new = object.__new__(LoadedForest)
        new.__setstate__(self.__getstate__())
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedForest:
        new = object.__new__(LoadedForest)
        new.__setstate__(deepcopy(self.__getstate__(), memo))
        return new

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """See :meth:`skforge.CompiledForest.get_params`."""
        params = {f.name: getattr(self, f.name) for f in fields(Parameters)}
        return dict(sorted(params.items()))

    def set_params(self, **params: Any) -> Any:
        """See :meth:`skforge.CompiledForest.set_params`."""
        valid = [*self.get_params()]
        for name, value in params.items():
            if name not in valid:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. Valid "
                    f"parameters are: {valid}."
                )
            setattr(self, name, value)
        return self

    def drop_estimator(self) -> LoadedForest:
        """See :meth:`skforge.CompiledForest.drop_estimator`."""
        return self._without_source()

    def _without_source(self) -> LoadedForest:
        new = self.__copy__()
        new.estimator = self._stored
        return new


class StoredArrays:
    """The arrays of a file: all of them, or each when it is asked for.

    The cache notes of a file that all of it was valid, so that the next process need
    not read the trees if their kernels are in the cache, too. Damage of a file of up to
    8 MB is noticed at once, that of a larger one where its arrays are read.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        facts = object_cache.sources(), container.digest, str(on_arm())
        self._key = object_cache.key_of(("file", *facts))
        note = object_cache.find(self._key) if object_cache.keeps() else None
        self._known = {} if note is None else json.loads(note)
        self.arrays: Mapping[str, Array] = container
        if note is None:
            self.arrays = container.read()
        else:
            container.check()
        self._forests: dict[str, Forest] = {}

    def forest(self, record: dict[str, Any], name: str = "forest") -> Forest:
        if name in self._known:
            return forest_later(record, self._container, name, *self._known[name])
        forest = forest_in(record, self.arrays, name)
        self._forests[name] = forest
        return forest

    def note(self) -> None:
        if self._forests and object_cache.keeps():
            forests = self._forests.items()
            facts = {n: (f.content_hash(), f.mean_depth()) for n, f in forests}
            object_cache.store(self._key, json.dumps(facts).encode())
