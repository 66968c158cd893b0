"""NumPy's floating-point errors, which users set for arithmetic of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


def own_arithmetic(function: F) -> F:
    """Let a function round, overflow and underflow, whatever ``np.seterr`` has set.

    ``np.errstate`` as a decorator keeps one state for all calls before NumPy 2.
    """

    @wraps(function)
    def quiet(*args: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **named)

    return cast(F, quiet)
