"""Detects that a model has changed since it was compiled.

Refitting or further training changes a model in place, but not its compiled forest.
Attributes from one and answers from the other would then not match.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.exceptions import InvalidModelError
from skforge.sources.find import Start, traces_of

#: Bytes of the largest array whose content is remembered.
_SMALL = 1 << 16


class Witness:
    """Remembers the parts of a model that another fit would replace.

    It detects replaced, added and removed trees, and numbers edited in arrays of up to
    64 KiB. Detecting edits inside a tree would take as long as reading the model;
    docs/exactness.md lists what goes unnoticed.

    Parameters
    ----------
    model : object
        The model that was compiled. Paths, ModelProtos and Forests do not change.
    start : int or Members, default=None
        Steps of a pipeline that run in their library, or members that are compiled.
    """

    __slots__ = ("_model", "_seen", "_start")

    def __init__(self, model: Any, start: Start = None) -> None:
        self._model, self._start = model, start
        self._seen = [(one, _content(one)) for one in traces_of(model, start)]

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


def _same(now: Any, seen: tuple[Any, Any]) -> bool:
    before, content = seen
    if now is before:
        return content is None or bool(_content(now) == content)
    plain = isinstance(now, (int, float, str)) and isinstance(before, type(now))
    return plain and bool(now == before or (now != now and before != before))  # NaN


def _content(value: Any) -> Any:
    """Return what a small array holds, its own arrays included, else None."""
    if not isinstance(value, np.ndarray) or value.nbytes > _SMALL:
        return None
    inside = map(_content, value.flat) if value.dtype == object else ()
    return value.tobytes(), *inside
