"""What a file's model is made of, as far as it is needed: its object and its arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from skforge._container import Container
from skforge._typing import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.record import forest_in, forest_later
from skforge.persistence.ready import Becoming, change_class
from skforge.prediction.answering import Answering
from skforge.runtime import object_cache
from skforge.runtime.libm import on_arm


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
