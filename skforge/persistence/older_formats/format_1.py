"""Format 1, of skforge 0.1.0: what its files hold, as format 2 names it."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Arrays
from skforge.exceptions import UnsupportedModelError


def to_next(manifest: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Return contents in format 2; the record of a search is left out."""
    kind, release = manifest["kind"], manifest["skforge_version"]
    new = {"skforge_version": release, "kind": kind}
    arrays = dict(arrays)
    if "forest.source_feature" not in arrays:
        arrays["forest.source_feature"] = np.zeros(0, np.int32)
    n_outputs = len(arrays["forest.base"])
    new["forest"] = _forest(manifest["forest"], n_outputs)
    if kind == "module":
        new["module"] = _module(manifest["module"])
    if kind == "estimator":
        new["estimator"] = _estimator(manifest["estimator"])
    return new, arrays


# ------------------------------------------------------------ forests


def _forest(record: dict[str, Any], n_outputs: int) -> dict[str, Any]:
    fields = dict(record)
    named = fields.pop("transform")
    if "outputs" in fields:  # which no name told
        fields["outputs"] = {**fields["outputs"], "weights": []}
    else:
        fields["outputs"] = _outputs(named, record["task"], record["source"], n_outputs)
    names = [each for each in record["category_names"] if each]
    if record["source"] == "lightgbm" and names:  # given to features by a guess
        fields |= {"category_names": [], "category_lists": names}
    if record["source"] == "xgboost":
        fields["parallel_trees"] = -1  # not known, so that no rounds can be chosen
    return fields


#: Outputs of scikit-learn by the names of 0.1.0; others are named as their function.
_SKLEARN: dict[str, dict[str, Any]] = {
    "gb_exponential": {"function": "expit", "labels": "from_zero"},
    "gb_logistic": {"function": "expit", "labels": "from_zero"},
    "hist_logistic": {"function": "expit", "labels": "above_zero"},
    "gb_softmax": {"function": "softmax_by_rows"},
    "hist_softmax": {"function": "softmax_by_columns"},
    "hist_exp": {"function": "numpy_exp", "probabilities": "scores"},
    "samme": {"function": "samme", "decision": "votes"},
    "path_length": {
        "function": "path_length",
        "probabilities": "scores",
        "decision": "paths",
    },
}


def _outputs(
    named: dict[str, Any], task: str, source: str, n_outputs: int
) -> dict[str, Any]:
    """Return the rules of outputs that 0.1.0 stored by a name."""
    name = named["kind"]
    rules = {
        "function": name,
        "probabilities": "scores",
        "labels": "best_score",
        "decision": "none",
        "named": True,
        "layout": "columns",
        "post": "none",
        "dtype": "float32",
        "weights": [],
        **{part: named[part] for part in ("parameter", "divisor", "offsets", "cutoff")},
    }
    if name in _SKLEARN:
        decides = "none" if name == "hist_exp" else "scores"
        rules |= {"probabilities": "values", "decision": decides, **_SKLEARN[name]}
        if name == "samme" and n_outputs == 2:
            rules["labels"] = "above_zero"
        if name == "gb_exponential":
            rules["parameter"] = {"float": (2.0).hex()}
    elif name.startswith("onnx:"):
        function, layout, post, dtype = name.split(":")
        labels = "above_bound" if task == "binary" else "first_greatest"
        rules |= {"function": function, "probabilities": "values", "labels": labels}
        rules |= {"layout": layout, "post": post, "dtype": dtype}
    elif source in ("xgboost", "lightgbm"):
        rules |= _of_boosting(name, task, source, n_outputs)
    return rules


def _of_boosting(
    function: str, task: str, source: str, n_outputs: int
) -> dict[str, Any]:
    several = n_outputs > 1
    chooses = source == "lightgbm" or (task == "multiclass" and n_outputs != 2)
    rules = {
        "probabilities": "values" if several else "complement",
        "labels": "best" if several and chooses else "half",
        "named": source == "lightgbm",
    }
    if function == "argmax":
        rules |= {"probabilities": "softmax", "labels": "index"}
    return rules


# ------------------------------------------------------------ schedules


def _table(rows: list[Any]) -> list[Any]:
    return [[[first, last], _schedule(value)] for first, last, value in rows]


def _schedule(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return _table(value["table"]) if "table" in value else value["schedule"]


def _module(record: dict[str, Any]) -> dict[str, Any]:
    explained = record.get("contribs_schedule")
    return {
        **{name: record[name] for name in ("target", "reduction", "n_jobs")},
        "schedules": _table(record["schedules"]),
        "contribs_schedule": None if explained is None else _table(explained),
    }


# ------------------------------------------------------------ estimators


def _estimator(record: dict[str, Any]) -> dict[str, Any]:
    params, tables = dict(record["params"]), record["tables"]
    params["schedule"] = _schedule(params["schedule"])
    budget = params["tuning_budget"]
    params["tuning_budget"] = "deprecated" if budget is None else {"float": budget}
    return {
        "params": params,
        "tuning_result": None,
        "_asked": record["asked"],
        "schedule_": _table(record["schedules"]),
        "_tables": tables and [*map(_table, tables)],
        "gpu_min_rows_": record["gpu_min_rows"],
        "fitted_target_": record["fitted_target"],
        "model": _model(record["model"]),
    }


#: By kind, rules that 0.1.0 did not keep: those that take the fewest rows.
_NOT_KEPT: dict[str, dict[str, Any]] = {
    "adaboost": {"nan": False},
    "histogram": {"coded": [], "named": []},  # models with an encoder were not saved
    "xgboost": {"index_dtypes": [], "dropped": ""},
    "xgboost_booster": {"index_dtypes": [], "dropped": ""},
}


def _model(record: dict[str, Any]) -> dict[str, Any]:
    kind, rules = record["kind"], dict(record["rules"])
    if kind == "pipeline":
        raise UnsupportedModelError(
            "it holds a pipeline, of which skforge 0.1.0 kept too little to tell which "
            "rows its trees are right for; fit and save the pipeline again."
        )
    left_out, of_no_rows = rules.pop("left_out"), rules.pop("of_no_rows", {})
    same = kind.removesuffix("_dart")
    if same in ("xgboost", "xgboost_booster"):
        del rules["n_features"]
        rules["rounds_in_place"] = kind != same
    rules |= _NOT_KEPT.get(same, {})
    return {
        **{name: record[name] for name in ("class_name", "methods", "tags")},
        "kind": same,
        "rules": rules,
        "left_out": left_out,
        "of_no_rows": [*of_no_rows.items()],
        "attributes": [*record["attributes"].items()],
        "whole": None,
        "more": [],
        "twins": [],
        "leaves": None,
    }
