"""Errors shared by the frontends of all libraries."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable
from typing import Any, NoReturn

from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
)

IntRange = tuple[int, int]

#: Most outputs of a model, so that a number in a file cannot allocate gigabytes.
MAX_OUTPUTS = 1 << 20


def refuse_unknown(what: str) -> NoReturn:
    raise UnsupportedModelError(
        f"{what}, which may change predictions, so the model cannot be compiled."
    )


def known_fields(kind: str) -> dict[str, frozenset[str]]:
    """Return the known fields of each object; another one may change predictions."""
    beside = os.path.join(os.path.dirname(__file__), "known_fields.json")
    with open(beside, encoding="utf-8") as file:
        known = json.load(file)[kind]
    return {where: frozenset(names) for where, names in known.items()}


def refuse_unfitted(model: Any) -> NoReturn:
    raise InvalidModelError(
        f"This {type(model).__name__} is not fitted; call fit before load_forest."
    )


def is_onedal(model: Any) -> bool:
    """Tell whether oneDAL trained, or will probably train, a model of sklearnex.

    What oneDAL cannot train, scikit-learn trains and predicts.
    """
    if not any(
        kind.__module__.startswith("sklearnex.") for kind in type(model).__mro__
    ):
        return False
    fitted = any(name.endswith("_") and name[0] != "_" for name in vars(model))
    return not fitted or hasattr(model, "_onedal_estimator")


def refuse_override(model: Any, package: str, name: str = "predict") -> None:
    module = getattr(getattr(type(model), name), "__module__", None)
    if f"{module}".startswith("sklearnex.") and not is_onedal(model):
        return
    if not f"{module}.".startswith(f"{package}."):
        raise UnsupportedModelError(
            f"{type(model).__name__} overrides {name}, so its predictions cannot be "
            "reproduced."
        )


#: Arguments of the libraries' ``predict`` that choose boosting rounds.
ROUNDS = {
    *("iteration_range", "ntree_limit", "num_iteration", "start_iteration"),
    *("ntree_start", "ntree_end"),
}

#: Arguments of the libraries' ``predict``, and what stands for them here.
INSTEAD = {
    **dict.fromkeys(
        ROUNDS,
        "compile load_forest(model, iteration_range=(begin, end)), which reads the "
        "boosting rounds of your choice",
    ),
    **dict.fromkeys(
        ("output_margin", "raw_score", "prediction_type"), "call predict_raw"
    ),
    "pred_leaf": "call apply",
    **dict.fromkeys(("pred_contribs", "pred_contrib"), "call predict_contribs"),
}


def refuse_arguments(method: str, names: Iterable[str], of: str = "") -> None:
    for name in sorted(names):
        if name in INSTEAD:
            raise InvalidInputError(f"{method}{of} takes no {name}; {INSTEAD[name]}.")
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")


def read_json(data: bytes) -> Any:
    collecting = gc.isenabled()
    gc.disable()  # collecting millions of new lists takes a third of the time
    try:
        return json.loads(data)
    except RecursionError:
        raise InvalidModelError(
            "The JSON is nested too deep to be read; save the model as .ubj (XGBoost), "
            ".txt (LightGBM) or .cbm (CatBoost)."
        ) from None
    except ValueError as error:
        raise InvalidModelError(
            f"The model is not valid JSON ({error}); it is damaged, so save it again."
        ) from error
    finally:
        if collecting:
            gc.enable()


def chosen_rounds(chosen: IntRange | None, n_rounds: int) -> IntRange | None:
    if chosen is None or tuple(chosen) == (0, 0):
        return None
    begin, end = int(chosen[0]), int(chosen[1]) or n_rounds
    if not 0 <= begin < end <= n_rounds:
        raise InvalidModelError(
            f"iteration_range {tuple(chosen)} does not lie within the "
            f"{n_rounds} boosting rounds of the model."
        )
    return begin, end
