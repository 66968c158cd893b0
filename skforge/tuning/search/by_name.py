"""Look up strategies by name."""

from __future__ import annotations

from skforge.exceptions import InvalidInputError
from skforge.tuning.search.heuristic import Heuristic
from skforge.tuning.search.learned import Learned
from skforge.tuning.search.strategies import (
    Exhaustive,
    Random,
    Strategy,
    SuccessiveHalving,
)


def strategy_of(value: str | Strategy) -> Strategy:
    """Return the strategy with a name; return a strategy object unchanged.

    Raises
    ------
    InvalidInputError
        If the name is unknown or the object is not a strategy.
    """
    named: dict[str, Strategy] = {
        one.name: one
        for one in (Heuristic(), Learned(), Exhaustive(), Random(), SuccessiveHalving())
    }
    if isinstance(value, str):
        if value not in named:
            raise InvalidInputError(
                f"strategy must be one of {', '.join(named)}, or an object with a "
                f"method rounds. Got {value!r} instead."
            )
        return named[value]
    if not isinstance(value, Strategy):
        raise InvalidInputError(
            "a strategy is an object with a name and a method rounds(problem); got "
            f"{type(value).__name__}."
        )
    return value
