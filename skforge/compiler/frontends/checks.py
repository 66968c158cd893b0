"""Errors shared by the frontends of all libraries."""

from __future__ import annotations

from typing import Any, NoReturn

from skforge.exceptions import InvalidModelError, UnsupportedModelError

Range = tuple[int, int]

#: Most outputs of a model, so that a number in a file cannot allocate gigabytes.
MAX_OUTPUTS = 1 << 20


def refuse_unknown(what: str) -> NoReturn:
    """Raise for an unknown part of a model."""
    raise UnsupportedModelError(
        f"{what}, which may change predictions, so the model cannot be compiled."
    )


def refuse_unfitted(model: Any) -> NoReturn:
    """Raise for an estimator without trees."""
    raise InvalidModelError(
        f"This {type(model).__name__} is not fitted; call fit before load_forest."
    )


def refuse_override(model: Any, package: str, name: str = "predict") -> None:
    """Raise for an estimator whose class overrides a method of the library."""
    module = getattr(getattr(type(model), name), "__module__", None)
    if not f"{module}.".startswith(f"{package}."):
        raise UnsupportedModelError(
            f"{type(model).__name__} overrides {name}, so its predictions cannot be "
            "reproduced."
        )


def chosen_rounds(chosen: Range | None, n_rounds: int) -> Range | None:
    """Return the requested boosting rounds ``[begin, end)``; None means all."""
    if chosen is None or tuple(chosen) == (0, 0):
        return None
    begin, end = int(chosen[0]), int(chosen[1]) or n_rounds
    if not 0 <= begin < end <= n_rounds:
        raise InvalidModelError(
            f"iteration_range {tuple(chosen)} does not lie within the "
            f"{n_rounds} boosting rounds of the model."
        )
    return begin, end
