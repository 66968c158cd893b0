"""Shadow mode: the live model answers too, or instead.

``SKFORGE_CHECK`` and ``SKFORGE_OFF`` are read when an object becomes able to answer.
If one is set, the object has a :class:`Shadow`, whose functions take the place of its
methods; otherwise nothing here is called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import signature
from itertools import count
from typing import Any

from skforge import config
from skforge.engine.arrays import into, is_device_array
from skforge.exceptions import shortened, with_article
from skforge.prediction import of_rounds
from skforge.prediction.counters import CHECKED, DIFFERENT, LIBRARY, rows_of
from skforge.prediction.of_source import of_source
from skforge.prediction.predictor import METHODS, ForestPredictor
from skforge.runtime.log import WARNING, log

#: Methods that the model has as well; of contributions, libraries have other bits.
SHADOWED = (*METHODS, "predict_log_proba", "apply")

#: Multiples of it, without their whole parts, spread evenly and have no period.
_GOLDEN = 0.618033988749895


def shadow_state() -> dict[str, Shadow]:
    """Return what an object's state gets from the environment: mostly nothing."""
    off, share = config.source_answers(), config.share_compared()
    return {"_shadow": Shadow(off, share)} if off or share else {}


class Shadow:
    def __init__(self, off: bool, share: float) -> None:
        self._off, self._share = off, share
        #: Each ``next`` is one step of the interpreter, so threads need no lock.
        self._calls, self._untold = count(), iter((True,))
        self._methods: dict[Any, Any] = {}

    @property
    def compares(self) -> bool:
        return not self._off

    def method(self, function: Any) -> Any:
        """Return what a class's function is replaced by for this object."""
        answer = self._by_source if self._off else self._compared
        if self._off and function.__name__.startswith("staged_"):
            answer = self._staged
        elif function.__name__ not in SHADOWED:
            return function

        @wraps(function)
        def shadowed(owner: Any, *args: Any, **named: Any) -> Any:
            return answer(owner, function, args, named)

        return self._methods.setdefault(function, shadowed)

    def _by_source(self, owner: Any, function: Any, args: Any, named: Any) -> Any:
        predictor: ForestPredictor = owner._compiled()
        X, out, params = _arguments(function, owner, args, named)
        who = f"SKFORGE_OFF is set, so {function.__name__}"
        predictor.source.origin.need(who, "Unset SKFORGE_OFF")
        predictor.fingerprint.check()
        X = predictor.framed(X)
        answer = of_source(predictor, function.__name__, X, params)
        predictor.counters.add(LIBRARY, rows_of(answer))
        return answer if out is None else into(out, answer)

    def _staged(self, owner: Any, function: Any, args: Any, named: Any) -> Any:
        X, _, params = _arguments(function, owner, args, named)
        predictor: ForestPredictor = owner._compiled()
        predictor.fingerprint.check()
        method = function.__name__.partition("_")[2]
        return of_rounds.staged_by_library(
            predictor, method, predictor.framed(X), params
        )

    def _compared(self, owner: Any, function: Any, args: Any, named: Any) -> Any:
        predictor: ForestPredictor = owner._compiled()
        answer = predictor.method(owner, function)(owner, *args, **named)
        if next(self._calls) * _GOLDEN % 1 < self._share:
            X, _, params = _arguments(function, owner, args, named)
            if why := predictor.incomparable:
                self._tell("SKFORGE_CHECK compares nothing: %s.", why)
                vars(owner).pop("_shadow", None)
                predictor.offered.clear()  # methods are found anew, without this
            elif not is_device_array(X):  # the GPU computes exponentials of its own
                self._compare(predictor, function.__name__, X, params, answer)
        return answer

    def _compare(
        self, predictor: ForestPredictor, method: str, X: Any, params: Any, answer: Any
    ) -> None:
        name, n_rows = type(predictor.source.model).__name__, rows_of(answer)
        n_different, text = 0, ""
        try:
            X = predictor.framed(X)
        except Exception:  # noqa: BLE001 - mappings become frames, which need pandas
            return
        try:
            from joblib import parallel_config

            from skforge.prediction.differences import difference

            with parallel_config("sequential"):  # threads add trees as they finish
                expected = of_source(predictor, method, X, params)
            if found := difference(answer, expected):
                n_different = len(found.rows)
                text = (
                    f"differs from {with_article(name)}'s in {n_different} of {n_rows} "
                    f"rows. Row {found.rows[0]}: skforge gives {found.value}, and the "
                    f"model {found.expected}"
                )
        except Exception as error:  # noqa: BLE001 - callers have their answer
            n_different = n_rows
            text = (
                f"of {n_rows} rows cannot be compared: {with_article(name)}'s raises "
                f"{type(error).__name__}: {error}"
            )
        predictor.counters.add(CHECKED, n_rows)
        if text:
            predictor.counters.add(DIFFERENT, n_different)
            self._tell(
                "%s %s. Later differences of this CompiledForest are only counted.",
                method,
                shortened(text),
            )

    def _tell(self, message: str, *values: object) -> None:
        if next(self._untold, False):
            with suppress(Exception):  # of the user's handlers and filters
                log(WARNING, message, *values)


def _arguments(
    function: Callable[..., Any], owner: Any, args: Any, named: Any
) -> tuple[Any, Any, dict[str, Any]]:
    bound = signature(function).bind(owner, *args, **named).arguments
    X, params = bound["X"], bound.get("params", {})
    if further := bound.get("args"):
        origin = owner._compiled().source.origin
        params = origin.named(function.__name__, X, further, params)
    return X, bound.get("out"), params
