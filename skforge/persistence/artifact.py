"""``skforge.save`` and ``skforge.load``: models as files without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from skforge._version import __version__
from skforge.compiler.forest.arrays import PostTransform
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.module import CompiledModule, restored
from skforge.compiler.runtime.targets import stored_target
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import (
    InconsistentVersionWarning,
    InvalidInputError,
    InvalidModelError,
    SkforgeError,
    shortened,
    warn,
)
from skforge.persistence.container import (
    container_bytes,
    container_from,
    read_container,
    write_container,
)
from skforge.persistence.stored_tuner import tuner_in, tuner_out
from skforge.sources.stored_model import StoredModel
from skforge.tuning.result import TuningResult

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
T = TypeVar("T")

__all__ = ["load", "save"]


def save(
    model: CompiledForest | CompiledModule | Forest, path: str | os.PathLike[str]
) -> None:
    """Save a compiled forest in a file that holds no pickle and no machine code.

    The file loads where the source library is not installed. It is written beside
    ``path`` and then put in its place: an interruption leaves the old file. What a
    killed process left beside it goes with the first save an hour later.

    Parameters
    ----------
    model : CompiledForest, CompiledModule or Forest
        A CompiledForest must be fitted. Its ``estimator_`` is not saved, but the
        forest, the schedules, the parameters (but a ``random_state`` that is no
        number, and of a Tuner a strategy, space, cost model or measurer of one's own:
        their defaults are loaded), the class labels and other fitted attributes, and
        the rules for rows.
    path : path
        By convention it ends in ``.skforge``.

    Raises
    ------
    UnsupportedModelError
        If the model holds what cannot be stored as plain data, named in the text.
    InvalidInputError
        If ``model`` is nothing that can be saved.

    See Also
    --------
    load : Reads the file.

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
    write_container(path, *_contents(model))


def to_bytes(model: CompiledForest | CompiledModule | Forest) -> bytes:
    """Return what :func:`save` would write."""
    return container_bytes(*_contents(model))


def _contents(
    model: CompiledForest | CompiledModule | Forest,
) -> tuple[dict[str, Any], Arrays]:
    arrays: Arrays = {}
    manifest: dict[str, Any] = {"skforge_version": __version__}
    if isinstance(model, Forest):
        manifest |= {"kind": "forest", "forest": _forest_out(model, arrays)}
    elif isinstance(model, CompiledModule):
        manifest |= {"kind": "module", "module": _module_out(model)}
        manifest["forest"] = _forest_out(model.forest, arrays)
    else:
        from skforge.estimators import CompiledForest

        if not isinstance(model, CompiledForest):
            raise InvalidInputError(
                "model must be a CompiledForest, a CompiledModule or a Forest. "
                f"Got {type(model).__name__} instead."
            )
        kept = model.drop_estimator()
        manifest |= {"kind": "estimator", "estimator": _estimator_out(kept, arrays)}
        manifest["forest"] = _forest_out(kept.forest_, arrays)
    return manifest, arrays


def load(path: str | os.PathLike[str]) -> Any:
    """Load what :func:`save` wrote.

    Parameters
    ----------
    path : path
        A ``.skforge`` file. Nothing in it is executed, and all of it is checked.

    Returns
    -------
    CompiledForest, CompiledModule or Forest
        As it was saved; kernels compile on the first call, for the CPU found here. A
        CompiledForest has no ``estimator_``: what only that could answer raises
        ``SourceNeededError``.

    Raises
    ------
    InvalidInputError
        If ``path`` is no path.
    InvalidModelError
        If the file cannot be read, is no such file, or is damaged.
    UnsupportedModelError
        If a later release wrote it in a format of its own.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise InvalidInputError(
            "skforge.load takes the path of a file that skforge.save wrote. Got "
            f"{type(path).__name__} instead."
        )
    try:
        return _checked(*read_container(path), os.fspath(path))
    except InvalidModelError as error:
        other = _other_kind(Path(os.fsdecode(path)))
        if other is None:
            raise
        raise InvalidModelError(other) from error


def _other_kind(path: Path) -> str | None:
    """Return what to do with a file of another kind; None for an own one, damaged."""
    if path.suffix == ".skforge" or not path.is_file() or is_zipfile(path):
        return None
    with path.open("rb") as file:
        pickled = file.read(1) == b"\x80"
    if pickled or path.suffix in (".pkl", ".pickle", ".joblib"):
        return (
            f"{path} is no .skforge file but a pickle; use joblib.load(path), if you "
            "trust who wrote it."
        )
    return (
        f"{path} is no .skforge file; skforge.load reads what skforge.save wrote. For "
        "a model file of another library, use CompiledForest(path) or "
        "load_forest(path)."
    )


def from_bytes(payload: bytes, name: str) -> Any:
    """Return what :func:`load` would of a file with these bytes; errors name it."""
    return _checked(*container_from(payload, name), name)


def _checked(manifest: dict[str, Any], arrays: Arrays, name: str) -> Any:
    try:
        return _load(manifest, arrays)
    except SkforgeError as error:
        if isinstance(error, InvalidModelError):
            reason: str = str(error)
        else:
            reason = f"{type(error).__name__}: {error}"
        raise InvalidModelError(
            f"{name} cannot be loaded: {shortened(reason)}"
        ) from error


def _load(manifest: dict[str, Any], arrays: Arrays) -> Any:
    written = _get(manifest, "skforge_version", str)
    if written != __version__:
        warn(
            f"This model was saved by skforge {written} and is loaded by "
            f"{__version__}; predictions are only promised for the same version. "
            "Save it again.",
            InconsistentVersionWarning,
        )
    kind = _get(manifest, "kind", str)
    if kind not in ("forest", "module", "estimator"):
        raise InvalidModelError(f"it holds a {kind!r}, which is not known.")
    forest = _forest_in(_get(manifest, "forest", dict), arrays).validate()
    if kind == "forest":
        return forest
    if kind == "module":
        return _module_in(_get(manifest, "module", dict), forest)
    return _estimator_in(_get(manifest, "estimator", dict), forest, arrays)


def _get(record: Mapping[str, Any], name: str, *types: type | None) -> Any:
    """Return an entry of the manifest after checking its type; bool is no int."""
    value = record.get(name)
    if not any(value is None if t is None else type(value) is t for t in types):
        wanted = " or ".join("null" if t is None else t.__name__ for t in types)
        raise InvalidModelError(
            f"the entry {name!r} of its manifest is no {wanted}; save the model again."
        )
    return value


def _refuse(name: str) -> InvalidModelError:
    return InvalidModelError(
        f"the entry {name!r} of its manifest is not what save writes; save the model "
        "again."
    )


# ------------------------------------------------------------ forests


def _forest_out(forest: Forest, arrays: Arrays) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for field in fields(Forest):
        value = getattr(forest, field.name)
        if isinstance(value, np.ndarray):
            arrays[f"forest.{field.name}"] = value
        else:
            record[field.name] = _plain_out(value)
    return record


def _forest_in(record: dict[str, Any], arrays: Arrays) -> Forest:
    values: dict[str, Any] = {}
    for field in fields(Forest):
        array = arrays.get(f"forest.{field.name}")
        if field.name not in _CHECKS:
            if array is None:
                raise InvalidModelError(f"it lacks the array forest.{field.name}.")
            values[field.name] = array
        elif field.name in record:
            value = _plain_in(field.name, record[field.name])
            if not _CHECKS[field.name](value):
                raise _refuse(field.name)
            values[field.name] = value
    if not _CHECKS.keys() - _LATER <= record.keys() <= _CHECKS.keys():
        raise _refuse("forest")
    return Forest(**values)


def _plain_out(value: Any) -> Any:
    """Return JSON for a plain value: floats as hexadecimal text, tuples as lists."""
    if isinstance(value, PostTransform):
        return {f.name: _plain_out(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain_out(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return {"float": value.hex()} if isinstance(value, float) else value


def _plain_in(name: str, value: Any) -> Any:
    """Return the plain value of such JSON, lists as tuples."""
    if isinstance(value, list):
        return tuple(_plain_in(name, one) for one in value)
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return _float(name, value["float"])
        if value.keys() != {f.name for f in fields(PostTransform)}:
            raise _refuse(name)
        return PostTransform(**{k: _plain_in(name, v) for k, v in value.items()})
    return value


def _float(name: str, text: Any) -> float:
    try:
        return float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        raise _refuse(name) from None


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def _all(*types: type) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is tuple and all(type(one) in types for one in value)
    )


def _is_transform(value: Any) -> bool:
    return (
        type(value) is PostTransform
        and type(value.kind) is str
        and type(value.parameter) in (float, int)
        and type(value.divisor) is int
        and type(value.cutoff) in (float, int)
        and _all(float, int)(value.offsets)
    )


#: The fields of a forest that are no arrays, and what their values must be.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "n_features": _is(int),
    "divisor": _is(int),
    "transform": _is_transform,
    "task": _is(str),
    "source": _is(str),
    "missing_value": _is(float, int),
    "feature_names": lambda names: names is None or _all(str)(names),
    "output_sizes": _all(int),
    "category_names": lambda names: (
        type(names) is tuple and all(_all(str, int, float, bool)(one) for one in names)
    ),
    "truncate_categories": _is(bool),
    "class_labels": _all(str, int, float, bool),
    "aggregate": _is(str),
    "wider_rows": _is(bool),
}
#: What the first artifacts did not have; the defaults are theirs.
_LATER = {"aggregate", "wider_rows"}


# ------------------------------------------------------------ modules


def _table_out(table: Mapping[Any, Any]) -> list[Any]:
    return [
        [first, last, _schedule_out(schedule)]
        for (first, last), schedule in table.items()
    ]


def _table_in(rows: list[Any]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for row in rows:
        if type(row) is not list or len(row) != 3 or type(row[0]) is not int:
            raise _refuse("schedules")
        if type(row[1]) not in (int, type(None)):
            raise _refuse("schedules")
        table[row[0], row[1]] = _schedule_in(row[2])
    return table


def _schedule_out(schedule: Any) -> Any:
    if isinstance(schedule, Mapping):
        return {"table": _table_out(schedule)}
    if isinstance(schedule, Schedule):
        return {"schedule": json.loads(schedule.to_json())}
    return str(schedule)


def _schedule_in(value: Any) -> Any:
    if type(value) is str:
        return value
    if type(value) is dict and value.keys() == {"table"}:
        return _table_in(_get(value, "table", list))
    if type(value) is dict and value.keys() == {"schedule"}:
        return Schedule.from_json(json.dumps(value["schedule"]))
    raise _refuse("schedule")


def _target_out(target: Target | str) -> Any:
    return target if isinstance(target, str) else json.loads(target.to_json())


def _target_in(value: Any) -> Target | str:
    return value if type(value) is str else Target.from_json(json.dumps(value))


def _module_out(module: CompiledModule) -> dict[str, Any]:
    return {
        "target": _target_out(stored_target(module.target)),
        "fitted_target": _target_out(module.target),
        "reduction": module.reduction,
        "n_jobs": None if module.n_jobs is None else int(module.n_jobs),
        "schedules": _table_out(module.schedules),
    }


def _module_in(record: dict[str, Any], forest: Forest) -> CompiledModule:
    return restored(
        forest,
        _table_in(_get(record, "schedules", list)),
        _target_in(_get(record, "target", str, dict)),
        _get(record, "reduction", str),
        _get(record, "n_jobs", int, None),
    )


# ------------------------------------------------------------ estimators

#: Parameters that JSON holds as they are, with their types.
_PLAIN_PARAMS: dict[str, tuple[type | None, ...]] = {
    "prefit": (str, bool),
    "reduction": (str,),
    "gpu_min_rows": (int, None),
    "n_jobs": (int, None),
    "random_state": (int, None),
    "verbose": (int, bool),
}


def _estimator_out(wrapper: Any, arrays: Arrays) -> dict[str, Any]:
    """Return the record of a CompiledForest that keeps a ``StoredModel``."""
    params = wrapper.get_params(deep=False)
    record: dict[str, Any] = {}
    for name, types in _PLAIN_PARAMS.items():
        value = params[name]
        value = value.item() if isinstance(value, np.generic) else value
        record[name] = value if type(value) in (bool, int, str) else None
        if record[name] is None and None not in types:
            raise InvalidInputError(f"{name} = {value!r} cannot be saved.")
    record["tuning"] = tuner_out(params["tuning"])
    sizes, budget = params["batch_sizes"], params["tuning_budget"]
    record["batch_sizes"] = None if sizes is None else np.asarray(sizes).tolist()
    record["tuning_budget"] = None if budget is None else float(budget).hex()
    record["schedule"] = _schedule_out(params["schedule"])
    record["target"] = _target_out(params["target"])
    model = wrapper.estimator
    state = vars(wrapper)
    if wrapper.tuning_result_ is not None:
        text = wrapper.tuning_result_.to_json().encode()
        arrays["tuning_result"] = np.frombuffer(text, np.uint8)
    return {
        "params": record,
        "asked": [_target_out(state["_asked"][0]), state["_asked"][1]],
        "schedules": _table_out(wrapper.schedule_),
        "tables": state["_tables"] and [_table_out(t) for t in state["_tables"]],
        "gpu_min_rows": _row_count(wrapper.gpu_min_rows_),
        "fitted_target": _target_out(wrapper.fitted_target_),
        "compile_time": float(wrapper.compile_time_).hex(),
        "model": {
            "class_name": model.class_name,
            "kind": model.kind,
            "rules": dict(model.rules),
            "methods": list(model.methods),
            "tags": dict(model.tags),
            "attributes": {
                name: _value_out(value, f"attribute.{name}", arrays)
                for name, value in model.attributes.items()
            },
        },
    }


def _row_count(value: Any) -> int | None:
    return None if value is None else int(value)


def _estimator_in(
    record: dict[str, Any], forest: Forest, arrays: Arrays
) -> CompiledForest:
    from skforge.estimators import CompiledForest

    model = _model_in(_get(record, "model", dict), forest, arrays)
    given = _get(record, "params", dict)
    params = {name: _get(given, name, *types) for name, types in _PLAIN_PARAMS.items()}
    params["tuning"] = tuner_in(_get(given, "tuning", str, dict))
    params["batch_sizes"] = _get(given, "batch_sizes", list, None)
    budget = _get(given, "tuning_budget", str, None)
    params["tuning_budget"] = budget and _float("tuning_budget", budget)
    params["schedule"] = _schedule_in(given.get("schedule"))
    params["target"] = _target_in(_get(given, "target", str, dict))
    asked = _get(record, "asked", list)
    if len(asked) != 2 or type(asked[1]) is not str:
        raise _refuse("asked")
    wrapper = CompiledForest(model, **params)
    target = _target_in(asked[0])
    fitted = _target_in(_get(record, "fitted_target", dict))
    if isinstance(fitted, str):
        raise _refuse("fitted_target")
    anywhere = target in ("auto", "cpu") and not fitted.is_gpu
    tables = _get(record, "tables", list, None)
    if tables is not None and (
        len(tables) != 2 or not all(type(table) is list for table in tables)
    ):
        raise _refuse("tables")
    wrapper.__dict__.update(
        _stored=model,
        _asked=(target, asked[1]),
        forest_=forest,
        schedule_=_table_in(_get(record, "schedules", list)),
        _tables=tables and (_table_in(tables[0]), _table_in(tables[1])),
        gpu_min_rows_=_get(record, "gpu_min_rows", int, None),
        fitted_target_=fitted,
        target_=Target.host() if anywhere else fitted,
        tuning_result_=_result_in(arrays),
        compile_time_=_float("compile_time", record.get("compile_time")),
    )
    return wrapper


def _result_in(arrays: Arrays) -> TuningResult | None:
    text = arrays.get("tuning_result")
    if text is None:
        return None
    if text.dtype != np.uint8 or text.ndim != 1:
        raise _refuse("tuning_result")
    return TuningResult.from_json(text.tobytes().decode("utf-8", "replace"))


def _model_in(record: dict[str, Any], forest: Forest, arrays: Arrays) -> StoredModel:
    from skforge.sources.stored import check_rules, stored_source

    attributes = {
        name: _value_in(name, value, arrays)
        for name, value in _get(record, "attributes", dict).items()
    }
    methods = _get(record, "methods", list)
    class_name = _get(record, "class_name", str)
    if not all(type(name) is str for name in methods):
        raise _refuse("model")
    model = StoredModel(
        forest,
        class_name,
        _get(record, "kind", str),
        _get(record, "rules", dict),
        tuple(methods),
        attributes,
        _get(record, "tags", dict),
    )
    try:
        check_rules(model)
        model.sklearn_tags()
        stored_source(model, forest)
    except (TypeError, ValueError) as error:
        raise _refuse("model") from error
    return model


def _value_out(value: Any, name: str, arrays: Arrays) -> Any:
    """Return JSON for a fitted attribute; its arrays are put aside."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return {"objects": [_plain_out(one) for one in value.tolist()]}
        arrays[name] = value
        return {"array": name}
    if isinstance(value, list):
        parts = (_value_out(v, f"{name}.{i}", arrays) for i, v in enumerate(value))
        return list(parts)
    return _plain_out(value)


def _value_in(name: str, value: Any, arrays: Arrays) -> Any:
    if isinstance(value, list):
        return [_value_in(name, one, arrays) for one in value]
    if isinstance(value, dict) and value.keys() == {"objects"}:
        return np.array(list(_objects(name, value["objects"])), dtype=object)
    if isinstance(value, dict) and value.keys() == {"array"}:
        array = arrays.get(value["array"]) if type(value["array"]) is str else None
        if array is None:
            raise _refuse(name)
        return np.array(array)
    plain = _plain_in(name, value)
    if type(plain) not in (bool, int, float, str):
        raise _refuse(name)
    return plain


def _objects(name: str, values: Any) -> Iterator[Any]:
    if type(values) is not list:
        raise _refuse(name)
    for value in values:
        plain = _plain_in(name, value)
        if type(plain) not in (bool, int, float, str):
            raise _refuse(name)
        yield plain
