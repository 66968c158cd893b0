"""Open the model files that the commands take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from skforge.cli.errors import warn
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    SkforgeError,
    UnsupportedModelError,
    with_article,
)
from skforge.forest.forest import Forest
from skforge.frontends.base import is_a, is_compiled, unwrap
from skforge.frontends.members import has_members
from skforge.prediction.answers import as_array
from skforge.prediction.choose_targets import choose, compile_first, compiled
from skforge.prediction.given_rows import GivenRows
from skforge.prediction.parameters import Parameters
from skforge.prediction.predictor import ForestPredictor
from skforge.prediction.revived import fitted_state
from skforge.prediction.shadow import shadow_state
from skforge.prediction.verification import verify
from skforge.rows.frames import coded_columns, is_pandas, placed
from skforge.sources.base import adapter_of
from skforge.sources.find import source_of
from skforge.sources.fitted import is_estimator, model_of
from skforge.sources.row_spec import row_spec


def is_own(path: Path) -> bool:
    return path.suffix.lower() == ".skforge"


def open_model(path: Path) -> Any:
    from skforge import load, load_forest

    if is_own(path):
        return load(path)
    pickled = path.suffix.lower() in (".joblib", ".pkl", ".pickle")
    return _unpickled(path) if pickled else load_forest(path)


def _unpickled(path: Path) -> Any:
    """Return the model of a pickle, which may run any code; this warns first."""
    warn(
        f"{path.name} is a pickle, and opening a pickle can run any code in it. Open "
        "it only if you trust where it comes from."
    )
    from joblib import load
    from sklearn.exceptions import InconsistentVersionWarning

    from skforge import load_forest

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InconsistentVersionWarning)
        try:
            model = load(path)
        except Exception as error:  # a pickle raises what it likes
            with suppress(SkforgeError):
                return load_forest(path)  # what XGBoost up to 1.2 pickled
            why = (str(error).splitlines() or [""])[0]
            raise InvalidModelError(
                f"{path.name} cannot be opened: {type(error).__name__}: {why}"
            ) from error
    for warning in caught[:1]:
        warn(str(warning.message).splitlines()[0])
    _check_model(path, model)
    return model


def _check_model(path: Path, model: Any) -> None:
    from skforge.modules.compiled import CompiledModule
    from skforge.prediction.delegation import is_fitted
    from skforge.sources.files import ForestSource

    if isinstance(model, (Forest, CompiledModule)):
        return
    known = (
        is_compiled(model)
        or is_a(model, "onnx.onnx_ml_pb2.ModelProto")
        or adapter_of(unwrap(model)) not in (None, ForestSource)
        or has_members(unwrap(model))
    )
    if not known:
        raise InvalidInputError(
            f"{path.name} holds an object of type {type(model).__name__}, which is no "
            "model that skforge compiles."
        )
    if not is_fitted(model):
        raise InvalidInputError(
            f"The {type(model).__name__} in {path.name} is not fitted; fit it before "
            "it is saved."
        )


def fitted(model: Any, rows: Any, **options: Any) -> Any:
    if is_compiled(model) and not options:
        return model
    if isinstance(model, Forest) and not options:
        return _of_file(model, rows)
    from skforge import CompiledForest

    with warnings.catch_warnings():
        # columns were found by name
        warnings.filterwarnings("ignore", "X (has|does not have valid) feature names")
        if is_compiled(model):
            return model.set_params(**options).fit(rows)
        source = getattr(model, "forest", model)  # of a CompiledModule
        return CompiledForest(source, **{"tuning": "off", **options}).fit(rows)


def _of_file(forest: Forest, rows: Any) -> Any:
    """Return what ``CompiledForest(forest, tuning="off").fit(rows)`` does.

    It is no estimator until one is needed: importing scikit-learn takes longer than all
    else.
    """
    from skforge.persistence.loaded import LoadedForest

    if is_pandas(rows) and forest.source == "lightgbm":  # by which it knows categories
        forest = placed(forest, coded_columns(rows))
    choice = choose("auto", None, forest, "auto", "exact")
    module = compiled(forest, choice, "exact", None)
    compile_first(module)
    predictor = ForestPredictor(module, source_of(forest, forest))
    verify(predictor, GivenRows(rows), missing_is_fine=True)
    predictor.counters.reset()
    model: Any = object.__new__(LoadedForest)
    vars(model).update(
        {field.name: field.default for field in fields(Parameters)},
        estimator=forest,
        tuning="off",
        **fitted_state(predictor, ("auto", "exact"), choice.tables),
        **shadow_state(),
    )
    return model


def quiet(model: Any, name: str) -> Callable[[Any], Any]:
    method = getattr(model, name)

    def call(X: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return as_array(method(X))

    return call


def live_model(model: Any) -> Any:
    inner = unwrap(model_of(model)) if is_compiled(model) else unwrap(model)
    return inner if is_estimator(inner) else None


def forest_of(model: Any) -> Forest:
    from skforge import load_forest
    from skforge.modules.compiled import CompiledModule

    if is_compiled(model):
        model = model.forest_
    elif isinstance(model, CompiledModule):
        model = model.forest
    return load_forest(model)


def drawable(path: Path, model: Any) -> Forest:
    with suppress(UnsupportedModelError):
        forest = forest_of(model)
        if not row_spec(model).framed and not row_spec(model).whole:
            return forest
    raise InvalidInputError(
        f"{path.name} holds {with_article(type(unwrap(model)).__name__)}, for which no "
        "random rows can be made; give rows with --data."
    )
