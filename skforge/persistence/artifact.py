"""Models as files without pickle: what :func:`save` writes, and what is read."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from skforge._container import Container, container_bytes, write_container
from skforge._typing import Arrays, BinaryFile
from skforge._version import __version__, check_release
from skforge.compiler.target import Target
from skforge.engine.schedules import ScheduleTable
from skforge.engine.targets import stored_target
from skforge.exceptions import (
    CompilerError,
    InvalidInputError,
    InvalidModelError,
    SkforgeError,
    shortened,
    with_article,
)
from skforge.forest.forest import Forest
from skforge.forest.record import forest_out
from skforge.frontends import answers_itself, read_forests
from skforge.frontends.base import class_name
from skforge.frontends.content import check_file
from skforge.frontends.members import is_wrapper
from skforge.modules.compiled import CompiledModule, restored
from skforge.persistence.loaded import LoadedForest, StoredArrays
from skforge.persistence.note import Note
from skforge.persistence.ready import Becoming
from skforge.prediction.shadow import shadow_state
from skforge.runtime import records
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.records import entry
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.sources.base import rules_type
from skforge.sources.fitted import is_compared
from skforge.sources.stored_model import StoredModel, store

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest


def save(
    model: CompiledForest | CompiledModule | Forest,
    path: str | os.PathLike[str] | BinaryFile,
) -> None:
    """Save a compiled forest to a file without pickles or machine code.

    The file loads without the source library. It is first written beside ``path`` and
    then renamed, so an interruption leaves the old file. Temporary files of killed
    processes are removed by the first save an hour later.

    Parameters
    ----------
    model : CompiledForest, CompiledModule or Forest
        A CompiledForest must be fitted. The file keeps its forest, schedules,
        parameters, class labels and other fitted attributes, and row rules, but not
        its ``estimator_``. A ``random_state`` that is not an integer, and a custom
        strategy, space, cost model or measurer of a Tuner, load as their defaults.
    path : path or binary file
        A path, by convention ending in ``.skforge``, or a file open for writing, such
        as ``io.BytesIO()``; it need not be able to seek.

    Raises
    ------
    UnsupportedModelError
        If the model holds something that is not plain data; the text names it.
    VerificationError
        If what was to be written, loaded again without the model, answers otherwise
        than the model. Nothing is written then.
    InvalidInputError
        If ``model`` is of a type that cannot be saved, or ``path`` no path or file.

    See Also
    --------
    skforge.load : Reads the file.

    Examples
    --------
    >>> import tempfile, skforge
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> fast = skforge.CompiledForest(tree).fit([[0.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     skforge.save(fast, f"{folder}/tree.skforge")
    ...     skforge.load(f"{folder}/tree.skforge").predict([[1.0]])
    array([4.])
    """
    write(compared_contents(model), path)


def write(
    contents: tuple[dict[str, Any], Arrays], path: str | os.PathLike[str] | BinaryFile
) -> None:
    """Write a manifest and arrays to a path or file."""
    if isinstance(path, (str, os.PathLike)):
        return write_container(path, *contents)
    check_file(path, "write", "a path or ")
    try:
        path.write(container_bytes(*contents))
    except ValueError as error:  # closed, or open for reading only
        raise InvalidInputError(
            f"This {type(path).__name__} cannot be written: {error}."
        ) from error


def to_bytes(model: CompiledForest | CompiledModule | Forest) -> bytes:
    """Return the bytes that :func:`save` would write."""
    return container_bytes(*compared_contents(model))


def compared_contents(
    model: CompiledForest | CompiledModule | Forest,
) -> tuple[dict[str, Any], Arrays]:
    """Return contents that answered as the model does, once loaded without it."""
    manifest, arrays = _contents(model)
    if is_compared(model):
        from skforge.prediction.stored_answers import compare_stored

        loaded = from_bytes(container_bytes(manifest, arrays), "the file")
        manifest["compared"] = [
            {"form": form, "methods": methods}
            for form, methods in compare_stored(model, loaded).items()
        ]
    elif (compared := vars(model).get("_compared")) is not None:  # when it was saved
        manifest["compared"] = compared
    return manifest, arrays


@own_arithmetic
def _contents(
    model: CompiledForest | CompiledModule | Forest,
) -> tuple[dict[str, Any], Arrays]:
    arrays: Arrays = {}
    manifest: dict[str, Any] = {"skforge_version": __version__}
    if isinstance(model, Forest):
        manifest |= {"kind": "forest", "forest": forest_out(model, arrays)}
    elif isinstance(model, CompiledModule):
        facts = {name: getattr(model, name) for name in _MODULE}
        facts["target"] = stored_target(model.target)
        manifest |= {"kind": "module", "module": records.values_out(facts)}
        manifest["forest"] = forest_out(model.forest, arrays)
    else:
        if not isinstance(model, Becoming):
            from skforge.estimators import CompiledForest

            if not isinstance(model, CompiledForest):
                raise InvalidInputError(
                    "model must be a CompiledForest, a CompiledModule or a Forest. Got "
                    f"{type(model).__name__} instead; pass CompiledForest(model).fit(X)"
                    " or compile_forest(model)."
                )
        without = model._without_source()  # the file is compared, and not this copy
        manifest |= {"kind": "estimator", "estimator": _estimator_out(without, arrays)}
        manifest["forest"] = _forest_out(without.estimator, "", arrays)
    return manifest, arrays


def from_bytes(payload: bytes, name: str) -> CompiledForest:
    """Return what :func:`load` returns for these bytes; errors use ``name``."""
    return loaded(Container(np.frombuffer(payload, np.uint8), name), name)


@own_arithmetic
def loaded(container: Container, name: str) -> CompiledForest:
    """Return what a file holds, whole; errors use ``name``."""
    stored = StoredArrays(container)
    try:
        model: Any = _load(container.manifest, stored)
    except CompilerError:  # which says nothing of the file
        raise
    except SkforgeError as error:
        ours = isinstance(error, InvalidModelError)
        reason = shortened(str(error) if ours else f"{type(error).__name__}: {error}")
        raise InvalidModelError(f"{name} cannot be loaded: {reason}") from error
    stored.note()
    if type(model) is LoadedForest:
        vars(model).update(shadow_state())
        same = container.manifest["skforge_version"] == __version__
        alone = model.n_jobs in (None, 1) and model._tables is None
        if same and alone:  # no warning, no threads, no GPU
            vars(model)["_note"] = Note(container.identity)
        if "sklearn.base" in sys.modules:
            model._become()
    return model


def _load(manifest: dict[str, Any], arrays: StoredArrays) -> Any:
    check_release(entry(manifest, "skforge_version", str), "model", "Save")
    kind = entry(manifest, "kind", str)
    if kind not in ("forest", "module", "estimator"):
        advice = "TreeExplainer.load" if kind == "explainer" else "a later skforge"
        raise InvalidModelError(
            f"it holds {with_article(kind)}, which skforge.load does not read; use "
            f"{advice}."
        )
    if kind == "estimator":
        return _estimator_in(entry(manifest, "estimator", dict), manifest, arrays)
    forest = arrays.forest(entry(manifest, "forest", dict))
    if kind == "forest":
        return forest
    facts = entry(manifest, "module", dict)
    return restored(forest, **records.values_in(_MODULE, facts))


# ------------------------------------------------------------ modules

#: The schedule of each range of batch sizes.
_StoredSchedules: TypeAlias = dict[BatchRange, Schedule]

#: What a file says of a module, with the types.
_MODULE: dict[str, Any] = {
    "target": str | Target,
    "reduction": str,
    "n_jobs": int | None,
    "schedules": _StoredSchedules,
    "contribs_schedule": _StoredSchedules | None,
}


# ------------------------------------------------------------ estimators

#: Parameters, with the types that are stored; the Tuner is apart.
_PARAMS: dict[str, Any] = {
    "prefit": str | bool,
    "schedule": str | dict[tuple[int, int | None], str | Schedule] | Schedule,
    "target": str | Target,
    "reduction": str,
    "gpu_min_rows": int | None,
    "n_jobs": int | None,
    "random_state": int | None,
    "verbose": int | bool | None,
    "batch_sizes": list[int] | None,
    "tuning_budget": float | str | None,
}

#: What ``fit`` has found, with the types.
_FITTED: dict[str, Any] = {
    "_asked": tuple[str | Target, str],
    "schedule_": _StoredSchedules,
    "_tables": tuple[_StoredSchedules, _StoredSchedules] | None,
    "gpu_min_rows_": int | None,
    "fitted_target_": Target,
}


#: A form of rows, and the methods by which a file was compared on it.
_COMPARED: dict[str, Any] = {"form": str, "methods": list[str]}


def _estimator_out(wrapper: Any, arrays: Arrays) -> dict[str, Any]:
    from skforge.persistence.stored_tuner import tuner_out

    params = wrapper.get_params(deep=False)
    record: dict[str, Any] = {"tuning": tuner_out(params["tuning"])}
    for name, kind in _PARAMS.items():
        value = params[name]
        if isinstance(value, (np.generic, np.ndarray)):
            value = value.tolist()
        try:
            records.plain_in(kind, records.plain_out(value), name)
        except InvalidModelError as error:
            if type(None) not in get_args(kind):
                raise InvalidInputError(
                    f"{name} = {value!r} cannot be saved; it must be of type {kind}."
                ) from error
            value = None
        record[name] = records.plain_out(value)
    state, result = vars(wrapper), wrapper.tuning_result_
    return {
        "params": record,
        "tuning_result": None if result is None else result.to_json(),
        **records.values_out({name: state[name] for name in _FITTED}),
        "model": _model_out(wrapper.estimator, "", arrays),
    }


def _estimator_in(
    record: dict[str, Any], manifest: dict[str, Any], arrays: StoredArrays
) -> Any:
    model = _model_in(entry(record, "model", dict), manifest.get("forest"), "", arrays)
    stored = entry(record, "params", dict)
    params = records.values_in(_PARAMS, stored)
    params["tuning"] = tuning = entry(stored, "tuning", str, dict)
    if not isinstance(tuning, str):
        from skforge.persistence.stored_tuner import tuner_in

        params["tuning"] = tuner_in(tuning)
    result: Any = entry(record, "tuning_result", str, None)
    if result is not None:
        from skforge.tuning.result import TuningResult

        result = TuningResult.from_json(result)
    fitted = records.values_in(_FITTED, record)
    target = fitted["fitted_target_"]
    anywhere = fitted["_asked"][0] in ("auto", "cpu") and target.kind == "cpu"
    fitted["schedule_"] = ScheduleTable(fitted["schedule_"])
    if "compared" in manifest:
        compared = entry(manifest, "compared", list)
        known = [one if isinstance(one, dict) else {} for one in compared]
        fitted["_compared"] = [records.values_in(_COMPARED, one) for one in known]
    wrapper: Any = object.__new__(LoadedForest)
    wrapper.__dict__.update(
        params,
        **fitted,
        estimator=model,
        _stored=model,
        forest_=model.forest,
        target_=Target.host() if anywhere else target,
        tuning_result_=result,
        compile_time_=0.0,  # not stored: equal fits save equal bytes
    )
    return wrapper


# ------------------------------------------------------------ models as data


def _forest_out(model: StoredModel, name: str, arrays: Arrays) -> Any:
    if model.kind == "wrapper" and answers_itself(model):
        return None
    return forest_out(model.forest, arrays, f"{name}forest")


#: Fields of a stored model that are plain data, and others, which hold arrays.
_PLAIN = "class_name", "kind", "rules", "methods", "left_out", "of_no_rows"
_HELD = "attributes", "whole", "more", "twins", "leaves"


def _model_out(model: StoredModel, name: str, arrays: Arrays) -> dict[str, Any]:
    if model.kind == "wrapper":  # whose members have the forests
        model = replace(model, more=())
    return {
        **records.values_out({field: getattr(model, field) for field in _PLAIN}),
        "tags": dict(model.tags),
        **{
            field: _value_out(getattr(model, field), f"{name}{field}", arrays)
            for field in _HELD
        },
    }


def _model_in(
    record: dict[str, Any], of_forest: Any, name: str, arrays: StoredArrays
) -> StoredModel:
    held = {
        field: _value_in(f"{name}{field}", record.get(field), arrays) for field in _HELD
    }
    if of_forest is None and is_wrapper(held["whole"]):
        forest, *held["more"] = read_forests(held["whole"])
    else:
        of_forest = entry({"forest": of_forest}, "forest", dict)
        forest = arrays.forest(of_forest, f"{name}forest")
    rules = {"rules": rules_type(entry(record, "kind", str))}
    types = records.field_types(StoredModel) | rules
    plain = records.values_in({field: types[field] for field in _PLAIN}, record)
    plain["tags"] = entry(record, "tags", dict)
    try:
        for field, kind in (("attributes", dict), ("more", tuple), ("twins", dict)):
            held[field] = kind(held[field])
        if held["leaves"] is not None:
            held["leaves"] = dict(held["leaves"])
        model = StoredModel(forest, **plain, **held)
        store.check(model)
    except (TypeError, ValueError) as error:
        raise records.refusal("model") from error
    return model


def _value_out(value: Any, name: str, arrays: Arrays) -> Any:
    if isinstance(value, np.generic):
        value = np.asarray(value)  # without dimensions
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return {"objects": [records.plain_out(item) for item in value.tolist()]}
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Mapping):
        value = [*value.items()]
    if isinstance(value, (list, tuple)):
        return [_value_out(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]
    if isinstance(value, np.ufunc):
        return {"function": value.__name__}
    if isinstance(value, StoredModel):
        record = _model_out(value, f"{name}.", arrays)
        return {"model": record, "forest": _forest_out(value, f"{name}.", arrays)}
    if isinstance(value, Forest):
        return {"forest": forest_out(value, arrays, name)}
    if store.is_part(class_name(value)):
        state = _value_out(store.bare_state(value), name, arrays)
        return {"class": class_name(value), "state": state}
    return records.plain_out(value)


def _value_in(name: str, value: Any, arrays: StoredArrays) -> Any:
    if isinstance(value, list):
        return [_value_in(f"{name}.{i}", item, arrays) for i, item in enumerate(value)]
    if not isinstance(value, dict) or value.keys() == {"float"}:
        return records.plain_in(Any, value, name)
    match [*value.items()]:
        case [("objects", list(objects))]:
            items = [records.plain_in(Any, item, name) for item in objects]
            return np.array(items, dtype=object)
        case [("array", str(at))] if at in arrays.arrays:
            array = np.array(arrays.arrays[at])
            return array if array.ndim else array[()]
        case [("function", str(called))]:
            function = getattr(np, called, None)
            if isinstance(function, np.ufunc):
                return function
        case [("model", dict(record)), ("forest", forest)]:
            return _model_in(record, forest, f"{name}.", arrays)
        case [("forest", dict(record))]:
            return arrays.forest(record, name)
        case [("class", str(kind)), ("state", list(state))]:
            values = _value_in(name, state, arrays)
            try:
                return store.rebuilt(store.class_of(kind), dict(values))
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise records.refusal(name) from error
        case _:
            pass
    raise records.refusal(name)
