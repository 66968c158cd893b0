"""The outputs that frontends should fill, by library, task and a short name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skforge.forest.outputs import OutputSpec

#: XGBoost's objectives; it has expectiles since 3.3.
XGBOOST = (
    *("reg:squarederror", "reg:squaredlogerror", "reg:absoluteerror"),
    *("reg:pseudohubererror", "reg:quantileerror", "reg:expectileerror"),
    *("reg:logistic", "reg:gamma", "reg:tweedie", "count:poisson", "survival:cox"),
    *("survival:aft", "binary:logistic", "binary:logitraw", "binary:hinge"),
    *("multi:softmax", "multi:softprob", "rank:pairwise", "rank:ndcg", "rank:map"),
)
SKLEARN = {
    "gb_exponential": OutputSpec(
        "expit", 2.0, probabilities="values", labels="from_zero", decision="scores"
    ),
    "gb_logistic": OutputSpec(
        "expit", probabilities="values", labels="from_zero", decision="scores"
    ),
    "hist_logistic": OutputSpec(
        "expit", probabilities="values", labels="above_zero", decision="scores"
    ),
    "gb_softmax": OutputSpec(
        "softmax_by_rows", probabilities="values", decision="scores"
    ),
    "hist_softmax": OutputSpec(
        "softmax_by_columns", probabilities="values", decision="scores"
    ),
    "hist_exp": OutputSpec("numpy_exp"),
    "samme": OutputSpec("samme", probabilities="values", decision="votes"),
    "path_length": OutputSpec("path_length", decision="paths"),
}


def outputs_of(
    name: str, task: str, source: str, n_outputs: int, **constants: Any
) -> OutputSpec:
    """Return a library's outputs; ONNX's names are ``onnx:layout:post:dtype``."""
    if name in SKLEARN:
        spec = SKLEARN[name]
        if name == "samme" and n_outputs == 2:
            spec = replace(spec, labels="above_zero")
    elif name.startswith("onnx:"):
        _, layout, post, dtype = name.split(":")
        labels = "above_bound" if task == "binary" else "first_greatest"
        spec = OutputSpec(
            "onnx",
            probabilities="values",
            labels=labels,
            layout=layout,
            post=post,
            dtype=dtype,
        )
    else:
        spec = OutputSpec(name)
        if source in ("xgboost", "lightgbm"):
            spec = _boosted(spec, task, source, n_outputs)
    return replace(spec, **constants)


def _boosted(spec: OutputSpec, task: str, source: str, n_outputs: int) -> OutputSpec:
    several, named = n_outputs > 1, source == "lightgbm"
    if spec.function == "argmax":
        return replace(spec, probabilities="softmax", labels="index", named=named)
    best = several and (named or (task == "multiclass" and n_outputs != 2))
    return replace(
        spec,
        probabilities="values" if several else "complement",
        labels="best" if best else "half",
        named=named,
    )
