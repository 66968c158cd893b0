"""Which further arguments of a call leave its answer as it is.

They are those with their defaults, and those that say how a library answers: on how
many threads, and whether it checks rows, as kernels take none that would fail. Values
that a library refuses are left to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

#: Tells by a value, the model and the rows whether an argument changes nothing.
Harmless = Callable[[Any, Any, Any], bool]


def _threads_or_all(value: Any, model: Any, X: Any) -> bool:
    return type(value) is int and -1 <= value <= 256


def _threads(value: Any, model: Any, X: Any) -> bool:
    return value != 0 and _threads_or_all(value, model, X)


def _flag(value: Any, model: Any, X: Any) -> bool:
    return type(value) is bool


def _flag_of_array(value: Any, model: Any, X: Any) -> bool:
    """LightGBM looks at the names of frames only if it is told to."""
    return type(value) is bool and type(X) is np.ndarray


def _silent(value: Any, model: Any, X: Any) -> bool:
    return type(value) in (bool, int) and not value


def _usual_level(value: Any, model: Any, X: Any) -> bool:
    """Of a model with further parameters, LightGBM prints which ones it ignores."""
    further = getattr(model, "_other_params", {}).keys() - {"verbose", "verbosity"}
    return type(value) is int and (value == -1 or (value <= 1 and not further))


def _best_rounds(value: Any, model: Any, X: Any) -> bool:
    """LightGBM takes as many rounds if it is told nothing; 0 and less are all."""
    best = getattr(getattr(model, "_Booster", model), "best_iteration", None)
    whole = type(value) is int and type(best) is int
    return whole and (value == best or max(value, best) <= 0)


#: By library and name, what the argument is, as some have several names.
_KNOWN: dict[str, dict[str, tuple[str, Harmless]]] = {
    "lightgbm": {
        **{
            name: ("threads", _threads_or_all)
            for name in ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs")
        },
        **{name: ("verbosity", _usual_level) for name in ("verbose", "verbosity")},
        "predict_disable_shape_check": ("shape check", _flag),
        "data_has_header": ("header", _flag),
        "validate_features": ("names", _flag_of_array),
        "num_iteration": ("rounds", _best_rounds),
    },
    "xgboost": {"validate_features": ("names", _flag)},
    "catboost": {"thread_count": ("threads", _threads), "verbose": ("log", _silent)},
}


class Usual(NamedTuple):
    """A call whose answer is that of the model and its rows alone."""

    model: Any
    X: Any
    #: The further arguments, for the library.
    named: dict[str, Any]
    #: How many threads they ask for.
    threads: int | None


class Arguments:
    """The parameters of a library's method."""

    def __init__(self, own: Callable[..., Any]) -> None:
        parameters = [*inspect.signature(own).parameters.values()]
        self._rows = parameters[1].name if len(parameters) > 1 else ""
        self._defaults = {p.name: p.default for p in parameters[2:]}
        library = own.__module__.partition(".")[0]
        self._known: Mapping[str, tuple[str, Harmless]] = _KNOWN.get(library, {})

    def usual(self, args: tuple[Any, ...], named: dict[str, Any]) -> Usual | None:
        """Return a call without what changes nothing, or None if other things do."""
        if len(args) == 1 and self._rows in named:
            named = {**named}
            args = *args, named.pop(self._rows)
        if len(args) != 2:
            return None
        told: dict[str, Any] = {}
        for name, value in named.items():
            if _is(value, self._defaults.get(name, inspect.Parameter.empty)):
                continue
            what, harmless = self._known.get(name, ("", _never))
            if what in told or not harmless(value, *args):
                return None
            told[what] = value
        threads = told.get("threads")
        return Usual(*args, named, threads if threads is None else threads or -1)


def _never(value: Any, model: Any, X: Any) -> bool:
    return False


def _is(value: Any, default: Any) -> bool:
    """Tell whether a value is a default, which numbers and tuples may equal."""
    if value is default:
        return default is not inspect.Parameter.empty
    plain = type(value) in (int, str, bool, float, tuple) and type(value) is type(
        default
    )
    return plain and repr(value) == repr(default)
