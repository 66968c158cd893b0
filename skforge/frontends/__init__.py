"""Frontends: read a model file or object into a :class:`Forest`.

Each folder is for one library. Its frontends register themselves on import, which the
first ``load_forest`` of a model that may need them triggers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from skforge._container import container_from, read_container
from skforge._version import check_release
from skforge.exceptions import (
    InvalidModelError,
    ModelNotFoundError,
    UnsupportedModelError,
    shortened,
    warn,
)
from skforge.forest.forest import Forest
from skforge.forest.record import forest_in
from skforge.frontends import base, content
from skforge.frontends.base import Frontend, register, registered, unwrap
from skforge.frontends.checks import IntRange
from skforge.frontends.members import has_members, members_of
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.records import entry

__all__ = ["Frontend", "load_forest", "register"]

_SEVERAL = (
    "{} computes its predictions from the scores of several forests, which one Forest "
    "cannot hold; use {}, which compiles all of them."
)


@own_arithmetic
def load_forest(
    model: object, *, iteration_range: tuple[int, int] | None = None
) -> Forest:
    """Read the trees of a fitted model or of its library's file; compile nothing.

    Parameters
    ----------
    model : path, bytes, binary file, Booster, ModelProto, estimator or Forest
        A JSON, UBJSON or old binary file saved by XGBoost, a text file or string by
        LightGBM, or what its ``dump_model`` returns, as a dict or a JSON file, a
        ``.cbm`` or JSON file by CatBoost (none of these libraries is needed); their
        models in memory; an ONNX file (which needs onnx) or ``ModelProto`` of a tree
        ensemble; a fitted scikit-learn forest or tree; a fitted ``Pipeline`` that ends
        in an estimator of these libraries, as a forest of float64 rows; or a fitted
        search with one as its ``best_estimator_``. Files are recognised by content, not
        by name, and may be open or in memory, as bytes. A ``Forest`` is returned as it
        is.
    iteration_range : tuple of int, optional
        Boosting rounds ``[begin, end)`` to keep, as in XGBoost's ``predict``. By
        default those that the source would use: all rounds of an XGBoost ``Booster``
        and its files; up to ``best_iteration`` for an early-stopped wrapper and its
        saved files, and for LightGBM's ``Booster``; all that a LightGBM file holds.

    Returns
    -------
    Forest

    Raises
    ------
    ModelNotFoundError
        The file does not exist; a ``FileNotFoundError`` and an ``InvalidModelError``.
    InvalidModelError
        The file cannot be read, is damaged, or the estimator is not fitted.
    UnsupportedModelError
        The model uses something that cannot be reproduced exactly, or computes its
        answers from several forests; the text names it.

    See Also
    --------
    skforge.compile_forest : Reads the same and compiles it.
    skforge.load : Loads what :func:`skforge.save` wrote.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> load_forest(DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0]))
    <Forest sklearn regression: 1 trees, 3 nodes, 1 distinct predicates, \
depth 1..1, 1 features, 1 outputs, float32 rows, float64 sums>
    """
    if answers_itself(model):
        last = type(base.last_step(unwrap(model))).__name__
        raise UnsupportedModelError(_SEVERAL.format(last, "CompiledForest(model)"))
    forest = read_forest(model, iteration_range)
    names = forest.category_names if forest.source == "sklearn" else ()
    for column, known in enumerate(names):
        if known and not isinstance(known[0], str) and not isinstance(model, Forest):
            raise UnsupportedModelError(
                f"Column {column} holds categories that are numbers, such as "
                f"{known[0]!r}, and rows of a Forest would hold their codes instead; "
                "use CompiledForest(model), which reads the numbers."
            )
    return forest


def answers_itself(model: Any) -> bool:
    """Tell whether a model computes its answers from the scores of several forests."""
    last = unwrap(model)
    _discover(last)
    while base.is_pipeline(last):
        last = base.last_step(last)
    for frontend in registered():
        if frontend.load_all is not None and frontend.detect(last):
            return frontend.is_whole is None or not frontend.is_whole(last)
    return False


@own_arithmetic
def read_forest(model: Any, rounds: IntRange | None = None) -> Forest:
    """Read a model as ``load_forest``; of a wrapper, the raw scores of its members."""
    if isinstance(model, Forest):
        if rounds is not None:
            raise UnsupportedModelError(
                "A Forest has no boosting rounds to choose from; use select_trees, "
                "which chooses trees."
            )
        return model.validate()
    model = content.read_content(unwrap(model))
    _discover(model)
    if content.is_path(model):
        return _load_file(model, rounds)
    for frontend in registered():
        if frontend.detect(model):
            return frontend.load(model, rounds).validate()
    if (data := content.content_of(model)) is not None:
        return _load_content(data, isinstance(model, str), rounds)
    raise _unknown(model)


@own_arithmetic
def read_forests(model: Any) -> tuple[Forest, ...]:
    """Return the forests whose raw scores, side by side, are those of a model."""
    model = unwrap(model)
    _discover(model)
    for frontend in registered():
        if frontend.detect(model) and frontend.load_all is not None:
            return tuple(forest.validate() for forest in frontend.load_all(model))
    return (read_forest(model),)


def refuse_untrained(estimator: Any) -> None:
    """Refuse an estimator, fitted or not, that could not be read after training.

    Its type and parameters are checked, or its inner estimator's for a search.
    """
    estimator = base.without_samplers(estimator)
    _discover(estimator)
    refusal = None
    if has_members(estimator) and not base.is_pipeline(estimator):
        for member in members_of(estimator):
            try:
                return refuse_untrained(unwrap(member))
            except UnsupportedModelError as error:
                refusal = refusal or no_member(estimator, error)
    if refusal is not None:
        raise refusal
    if base.is_search(estimator) and hasattr(estimator, "estimator"):
        if getattr(estimator, "refit", True) is False:
            raise _unknown(estimator)
        return refuse_untrained(estimator.estimator)
    for frontend in registered():
        if frontend.detect(estimator):
            if frontend.refuse is not None:
                frontend.refuse(estimator)
            return
    raise _unknown(estimator)


def no_member(model: Any, why: object) -> UnsupportedModelError:
    kind = type(model).__name__
    if any(map(base.is_compiled, members_of(model))):
        why = "its members are compiled already, so use it as it is."
    return UnsupportedModelError(f"{kind} has no member that can be compiled: {why}")


def _unknown(model: Any) -> UnsupportedModelError:
    if base.is_a(model, "sklearn.pipeline.Pipeline"):
        advice = "pass its last step; a pipeline also accepts a compiled last step"
    elif base.is_search(model) and getattr(model, "refit", True) is False:
        advice = "with refit=False it has no best_estimator_; search with refit=True"
    elif base.is_search(model):
        advice = "fit it first, so that its best_estimator_ can be read"
    elif has_members(model):
        advice = (
            "it computes its predictions from those of its members; use "
            "CompiledForest(model), which compiles the members that are forests"
        )
    elif base.is_a(model, "skforge.estimators.CompiledForest"):
        advice = "it is compiled already; use it as it is"
    elif hasattr(model, "fit") and (
        hasattr(model, "estimator") or hasattr(model, "estimators")
    ):
        advice = (
            "it consists of other models; replace each tree ensemble in it by "
            "CompiledForest(model)"
        )
    elif hasattr(model, "fit"):
        advice = "it is not one of the tree ensembles that can be compiled"
    else:
        advice = "pass a fitted model, or the path or bytes of a saved one"
    _discover()
    return UnsupportedModelError(
        f"skforge cannot read {base.class_name(model)}; {advice}. It reads models of "
        f"{', '.join(sorted({f.name.partition(' ')[0] for f in registered()}))}."
    )


#: Libraries whose frontends read only files and objects of their own classes. To import
#: them all takes 12 ms.
_APART = ("catboost", "lightgbm", "onnx", "xgboost")


def _discover(model: object = "") -> None:
    a_file = isinstance(model, (str, bytes, os.PathLike, dict))  # or its content
    packages = {name.partition(".")[0] for name in base.class_names(model)}
    from pkgutil import iter_modules

    for module in iter_modules(__path__):
        needed = a_file or module.name not in _APART or module.name in packages
        if module.ispkg and needed:
            import_module(f"{__name__}.{module.name}")


def _load_file(model: Any, rounds: IntRange | None) -> Forest:
    from pathlib import Path

    path = Path(model)
    try:
        if path.is_dir():
            raise InvalidModelError(
                f"{path} is a folder; give the path of a model file in it."
            )
        with path.open("rb") as file:
            head = file.read(content.HEAD)
        if not head:
            raise InvalidModelError(f"{path} is empty; save the model again.")
        name = content.frontend_name(head, path.name)
        if name == "skforge":
            return _saved(path.name, read_container(path), rounds)
        suffix = path.suffix.lower()
        # A frontend that users register for a suffix goes before the content.
        by_suffix = [f.name for f in registered() if suffix in f.suffixes]
        if by_suffix and (name is None or by_suffix[0] not in content.CONTENTS):
            name = by_suffix[0]
        if (load_bytes := _reader_of(name)) is not None:
            return load_bytes(path.read_bytes(), rounds).validate()
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"{path} does not exist; give the path of a saved model."
        ) from error
    except OSError as error:
        raise InvalidModelError(
            f"{path} cannot be read: {error.strerror or error}."
        ) from error
    except (InvalidModelError, UnsupportedModelError) as error:
        text = str(error)
        if path.name not in text:
            text = f"{path.name}: {text}"
        raise type(error)(shortened(text)) from error
    raise UnsupportedModelError(
        f"{path.name or path} is not a model file that skforge recognises; "
        f"{content.SAVE_IT}"
    )


def _reader_of(name: str | None) -> Callable[[bytes, IntRange | None], Forest] | None:
    return next((f.load_bytes for f in registered() if f.name == name), None)


def _load_content(data: bytes, a_text: bool, rounds: IntRange | None) -> Forest:
    name = "This text" if a_text else "This bytes object"
    if not data:
        raise InvalidModelError(f"{name} is empty; it holds no model.")
    kind = content.frontend_name(data, name)
    if kind == "skforge":
        return _saved(name, container_from(data, name), rounds)
    if (load_bytes := _reader_of(kind)) is not None:
        return load_bytes(data, rounds).validate()
    raise UnsupportedModelError(
        f"{name} is not a model that skforge recognises: it begins with "
        f"{data[:16]!r}. Pass the content of a file that XGBoost, LightGBM, CatBoost "
        "or skforge.save wrote, or of an ONNX model."
    )


def _saved(name: str, container: tuple[Any, Any], rounds: IntRange | None) -> Forest:
    if rounds is not None:
        raise UnsupportedModelError(
            f"{name} was saved by skforge.save, which fixes the boosting rounds; "
            "pass iteration_range when you read the original model."
        )
    manifest, arrays = container
    warn(
        f"{name} was saved by skforge.save; use skforge.load(path). Reading only its "
        "trees was deprecated in 0.2 and will be an error in 0.4.",
        FutureWarning,
    )
    check_release(entry(manifest, "skforge_version", str), "model", "Save")
    if manifest.get("kind") == "estimator" and manifest.get("forest") is None:
        raise UnsupportedModelError(_SEVERAL.format(name, "skforge.load(path)"))
    return forest_in(entry(manifest, "forest", dict), arrays)
