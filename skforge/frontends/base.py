"""The registry of frontends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from skforge.forest.forest import Forest


@dataclass(frozen=True)
class Frontend:
    name: str  # the kind, such as ``"xgboost"``; registering a name again replaces it
    #: File name suffixes it reads, in lower case with the dot; may be empty.
    suffixes: tuple[str, ...]
    #: ``detect(model)`` tells whether this frontend reads an object in memory; it must
    #: not import the source library.
    detect: Callable[[object], bool]
    #: ``load(model, iteration_range)`` reads a detected object.
    load: Callable[[Any, tuple[int, int] | None], Forest]
    #: ``load_bytes(data, iteration_range)`` reads the content of a file.
    load_bytes: Callable[[bytes, tuple[int, int] | None], Forest] | None = None
    #: ``refuse(model)`` raises ``UnsupportedModelError`` for an estimator whose type
    #: and parameters show that it could not be read after fitting.
    refuse: Callable[[Any], None] | None = None
    #: ``load_all(model)`` returns all forests of a model that computes its answers from
    #: their raw scores by itself. ``load_forest`` refuses such models.
    load_all: Callable[[Any], tuple[Forest, ...]] | None = None
    #: ``is_whole(model)`` tells that the first of these forests has the answers, too.
    is_whole: Callable[[Any], bool] | None = None


_REGISTRY: dict[str, Frontend] = {}


def register(frontend: Frontend) -> None:
    """Add a frontend; the last one registered is tried first, skforge's own last."""
    _REGISTRY.pop(frontend.name, None)
    _REGISTRY[frontend.name] = frontend


def registered() -> tuple[Frontend, ...]:
    def is_own(frontend: Frontend) -> bool:
        return getattr(frontend.load, "__module__", "").startswith("skforge.")

    return tuple(sorted(reversed(_REGISTRY.values()), key=is_own))


def class_name(model: object) -> str:
    """Return ``module.Class`` of an object's own class: subclasses may do anything."""
    return f"{type(model).__module__}.{type(model).__qualname__}"


def class_names(model: object) -> set[str]:
    """Return ``module.Class`` for an object's class and all its bases."""
    return {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}


def is_a(model: object, *names: str) -> bool:
    return not class_names(model).isdisjoint(names)


def detects(*names: str) -> Callable[[object], bool]:
    return lambda model: is_a(model, *names)


def is_frozen(model: object) -> bool:
    return is_a(model, "sklearn.frozen._frozen.FrozenEstimator")


def is_search(model: object) -> bool:
    known = is_a(model, "sklearn.model_selection._search.BaseSearchCV")
    return known or "best_estimator_" in getattr(model, "__dict__", {})


def unwrap(model: Any) -> Any:
    while True:
        if is_frozen(model):
            model = model.estimator
        elif is_search(model) and "best_estimator_" in vars(model):
            model = model.best_estimator_
        else:
            return without_samplers(model)


#: By pipeline: the ids of its steps, and the pipeline of those that predict.
_predicting: WeakKeyDictionary[Any, tuple[list[int], Any]] = WeakKeyDictionary()


def without_samplers(model: Any) -> Any:
    """Return imbalanced-learn's pipeline as scikit-learn's: samplers only fit."""
    if class_name(model) != "imblearn.pipeline.Pipeline":
        return model
    from sklearn.pipeline import Pipeline

    ids, known = [id(step) for _, step in model.steps], _predicting.get(model)
    if known is None or known[0] != ids:
        steps = [pair for pair in model.steps if not hasattr(pair[1], "fit_resample")]
        known = _predicting[model] = ids, Pipeline(steps)
    return known[1]


def is_pipeline(model: object) -> bool:
    """Tell whether the model is scikit-learn's ``Pipeline``, and no subclass of it."""
    return class_name(model) == "sklearn.pipeline.Pipeline"


def is_compiled(model: object) -> bool:
    light = "loaded.LoadedForest", "ready.ReadyForest"
    loaded = (f"skforge.persistence.{name}" for name in light)
    return is_a(model, "skforge.estimators.CompiledForest", *loaded)


def last_step(model: Any) -> Any:
    """Return the model at the end of a pipeline; any other model itself.

    For a ``CompiledForest`` there, return its estimator; the ``CompiledForest`` itself
    if it has none (a Booster, a file).
    """
    if not is_pipeline(model):
        return model
    step = unwrap(model.steps[-1][1])
    while is_compiled(step):
        inner = unwrap(vars(step).get("estimator_", step.estimator))
        if not hasattr(inner, "fit"):
            break
        step = inner
    return step
