"""How a predictor of a live model lets new forms of rows meet the model first.

What is compared, and on which rows, is said in :mod:`skforge.prediction.door`, which a
loaded model never imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.prediction.forms_met import Question
from skforge.prediction.of_kernels import OfKernels
from skforge.prediction.of_rows import NO_PARAMS

#: An array of the form of objects.
_NO_OBJECTS = np.empty((0, 0), object)
Asking = TypeVar("Asking", bound=Callable[..., Any])


def at_door(ask: Asking) -> Asking:
    """Let rows of a new form meet the model before a method first answers them."""
    name = ask.__name__

    @wraps(ask)
    def asked(predictor: AtDoor, X: Any, n_jobs: int | None = None) -> Any:
        return predictor.at_door(name, X, lambda rows: ask(predictor, rows, n_jobs))

    return cast(Asking, asked)


class AtDoor(OfKernels):
    """Compares answers with a live model's; a base of ``ForestPredictor``."""

    __slots__ = ()

    def at_door(
        self,
        method: str,
        X: Any,
        ours: Callable[[Any], Any],
        params: Mapping[str, Any] = NO_PARAMS,
    ) -> Any:
        """Answer rows by compiled code; those of a new form meet the model first."""
        if self.door is None:
            return ours(X)
        theirs = partial(self.own, method, params)
        question = Question(self, self.asked_with(method, params), ours, theirs)
        return self.door.answer(question, X)

    def asked_with(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the name of a call with arguments; rounds are of few kinds."""
        rounds = self.module.parts[0].rounds
        most = 0 if rounds is None else rounds.n

        def kind(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return tuple(map(kind, value))
            if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
                return int(np.sign(value)) + (value > most)
            return value if isinstance(value, (str, type(None))) else repr(value)

        return method, *((name, kind(params[name])) for name in sorted(params))

    def own(self, method: str, params: Mapping[str, Any], X: Any) -> Any:
        """Return the live model's own answer."""
        from skforge.prediction.of_source import of_source

        return of_source(self, method, self.framed(X), params)

    @cached_property
    def known_columns(self) -> Any:
        from skforge.prediction.door import known_of

        return known_of(self.source)

    def takes_objects(self, method: str) -> bool:
        """Tell whether an entry may take arrays of objects from users."""
        return self.door is None or bool(self.door.agreed(method, _NO_OBJECTS))

    def arrays_meet(self, method: str, entry: Callable[[Any], Any]) -> bool:
        """Compare the arrays that an entry takes from Python with the model."""
        if (door := self.door) is None:
            return True

        def ours(given: Any) -> Any:
            answer = entry(given)  # None: it declines some sizes
            return self.by_kernels(method, given, None) if answer is None else answer

        rows: Array = self.source.drawn(1, 0.0)[:1]
        theirs = partial(self.own, method, {})
        known = [rows.astype(d) for d in (np.float32, np.float64)]
        asked = partial(self.counters.uncounted, entry)
        taken = [part for part in known if asked(part) is not None]
        question = Question(self, method, ours, theirs)
        return all([door.meet(question, x) for x in taken])
