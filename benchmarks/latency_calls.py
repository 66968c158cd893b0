"""Whose calls latency.py times: skforge's, those of a model's own library, and peers'.

Each is called as its users call it, on one thread, with conversions included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import peers as loaders
from cases import Case
from conditions import Call
from models import Model
from numpy.typing import NDArray

from skforge import CompiledForest, compile_forest

Answers = dict[str, NDArray[Any]]

OURS = "CompiledForest.predict"
PEERS = ("treelite", "tl2cgen", "lignum", "lignum_compiled", "onnxruntime")
#: What may be asked for besides: peers.py has more, in environments of their own.
MORE_PEERS = ("daal4py",)


Form = Callable[[NDArray[Any]], Any]


@dataclass(frozen=True, slots=True)
class System:
    """A call, and which of the model's answers it gives; "" for one of its own."""

    name: str
    call: Call
    answer: str
    ours: bool = False
    form: Form = np.asarray  # the kind of rows that it gets, made before it is timed


def forms(names: tuple[str, ...] | None) -> dict[str, Form]:
    """Return kinds of rows that hold the same numbers, beside the model's own."""
    import pandas as pd
    import polars as pl

    def frame(X: NDArray[Any]) -> Any:
        return pd.DataFrame(X, columns=names or [f"f{i}" for i in range(X.shape[1])])

    def mixed(X: NDArray[Any]) -> Any:
        made = frame(X.astype(np.float64))
        return made.astype(dict.fromkeys(made.columns[::2], X.dtype))

    return {
        "list": lambda X: X.tolist(),
        "pandas": frame,
        "pandas, mixed": mixed,
        "polars": lambda X: pl.from_pandas(frame(X)),
    }


def our_calls(case: Case, answers: Answers) -> list[System]:
    """Return the estimator's methods, and compiled entries under their own names."""
    model = CompiledForest(case.source, tuning="off").fit(case.rows)
    classifies = case.forest.task in ("binary", "multiclass")
    named = {OURS: "labels" if classifies else "value"}
    # a method is looked up at every call, as in users' code: it costs 50 to 200 ns
    methods: dict[str, Call] = {OURS: lambda X: model.predict(X)}
    if classifies:
        named["CompiledForest.predict_proba"] = "probability"
        methods["CompiledForest.predict_proba"] = lambda X: model.predict_proba(X)
    named["CompiledForest.predict_raw"] = "raw"
    methods["CompiledForest.predict_raw"] = lambda X: model.predict_raw(X)
    module = compile_forest(case.forest)
    module.compile_all()
    outputs = [("labels", "labels")] if classifies else [("transformed", "value")]
    for output, answer in [*outputs, ("raw", "raw")]:
        entry = module.entry(output)
        if entry is not None:
            named[f'entry("{output}")'] = answer
            methods[f'entry("{output}")'] = entry
    _complete(case, answers)
    systems = [
        System(name, call, named[name], ours=True)
        for name, call in methods.items()
        if named[name] in answers
    ]
    systems += [
        System(f"{OURS}, {name}", methods[OURS], named[OURS], ours=True, form=form)
        for name, form in forms(case.forest.feature_names).items()
        if named[OURS] in answers
    ]
    return systems


def _complete(case: Case, answers: Answers) -> None:
    """Add answers that follow from those a library gives."""
    if case.kind == "sklearn":  # averages are what its forests answer
        answers["raw"] = answers.get("probability", answers.get("value"))
    value = answers.get("value")
    if value is None or case.forest.task != "binary" or "labels" in answers:
        return
    answers["labels"] = (value > 0.5).astype(np.int64)
    answers["probability"] = np.stack([1 - value, value], axis=1)


def own_calls(case: Case) -> list[System]:
    match case.kind:
        case "xgboost":
            return _xgboost(case)
        case "lightgbm":
            return _lightgbm(case)
        case _:
            return _sklearn(case)


def _xgboost(case: Case) -> list[System]:
    import xgboost

    regresses = case.forest.task == "regression"
    kind = xgboost.XGBRegressor if regresses else xgboost.XGBClassifier
    with xgboost.config_context(verbosity=0):  # old files draw a warning
        booster = xgboost.Booster(model_file=str(case.source))
        wrapper = kind(n_jobs=1)
        wrapper.load_model(case.source)
    booster.set_param({"nthread": 1})

    def margin(X: NDArray[Any]) -> Any:
        return booster.inplace_predict(X, predict_type="margin")

    found = [
        System("xgboost inplace_predict", booster.inplace_predict, "value"),
        System("xgboost inplace_predict, margin", margin, "raw"),
    ]
    if regresses:
        return [*found, System("XGBRegressor.predict", wrapper.predict, "value")]
    return [
        *found,
        System("XGBClassifier.predict", wrapper.predict, "labels"),
        System("XGBClassifier.predict_proba", wrapper.predict_proba, "probability"),
    ]


def _lightgbm(case: Case) -> list[System]:
    import lightgbm

    found = []
    if isinstance(case.source, Path):
        booster = lightgbm.Booster(model_file=str(case.source))
    else:
        booster = case.source.booster_
        found = [
            System("LGBMClassifier.predict", case.source.predict, "labels"),
            System(
                "LGBMClassifier.predict_proba", case.source.predict_proba, "probability"
            ),
        ]

    def value(X: NDArray[Any]) -> Any:
        return booster.predict(X, num_threads=1)

    def raw(X: NDArray[Any]) -> Any:
        return booster.predict(X, raw_score=True, num_threads=1)

    return [
        *found,
        System("lightgbm Booster.predict", value, "value"),
        System("lightgbm Booster.predict, raw", raw, "raw"),
    ]


def _sklearn(case: Case) -> list[System]:
    case.source.set_params(n_jobs=1)
    if not hasattr(case.source, "predict_proba"):
        return [System("sklearn predict", case.source.predict, "value")]
    return [
        System("sklearn predict", case.source.predict, "labels"),
        System("sklearn predict_proba", case.source.predict_proba, "probability"),
    ]


def peers(model: Model, names: tuple[str, ...]) -> Iterator[System]:
    """Yield peers in this process that read the model; their answers are their own."""
    for name in names:
        start = perf_counter()
        try:
            call = getattr(loaders, name)(asdict(model)).predict(1)
            call(np.load(model.rows)[:1])
        except Exception as error:  # noqa: BLE001 (a peer's failure is not ours)
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            print(f"  {name} is left out: {reason}", flush=True)
            continue
        taken = perf_counter() - start
        if taken > 1:
            print(f"  {name} was prepared in {taken:.0f} s", flush=True)
        yield System(name, call, "")
