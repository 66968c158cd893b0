"""Measure single calls: the time each takes, for one row and for a few.

Every call is timed by itself, so that the slow ones can be seen; what the clock costs,
measured around a function that does nothing, is subtracted. Systems take turns within
one process. All answers are compared with the model's own library first: a difference
of one bit in an answer of skforge ends the run.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Annotated, Any

import numpy as np
import peers as loaders
import typer
from cases import Case, cases
from machine import machine
from models import Model
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from skforge import CompiledForest, compile_forest, load_forest
from skforge._cli_report import describe_difference, duration

Answers = dict[str, NDArray[Any]]
Call = Callable[[NDArray[Any]], Any]

OURS = "CompiledForest.predict"
ROUNDS = 8
POOL = 64
CHECKED_ROWS = 1024
FEWEST = 400  # calls, however slow


@dataclass(frozen=True, slots=True)
class System:
    """A call, and which of the model's answers it gives; "" for one of its own."""

    name: str
    call: Call
    answer: str


@dataclass(frozen=True, slots=True)
class Line:
    """One system at one number of rows; seconds of a call, without the clock."""

    model: str
    rows: int
    system: str
    answer: str
    calls: int
    p50: float
    p99: float
    p999: float


def main(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of names of models; default: all."),
    ] = None,
    rows: Annotated[str, typer.Option(help="Rows a call.")] = "1,8",
    calls: Annotated[int, typer.Option(help="Calls of a system, at most.")] = 20_000,
    seconds: Annotated[
        float, typer.Option(help="Seconds of a system; 400 calls at least.")
    ] = 0.2,
    others: Annotated[bool, typer.Option(help="Measure installed peers.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table here.")] = None,
) -> None:
    """Measure, print Markdown, and write it with the raw numbers where asked."""
    sizes = [int(part) for part in rows.split(",")]
    lines: list[Line] = []
    clock = clock_cost()
    with threadpool_limits(limits=1):
        for case in all_cases(models or []):
            print(
                f"{case.name} ({len(case.rows):,} rows, {case.rows_from})", flush=True
            )
            systems = checked_systems(case, sizes, others)
            for size in sizes:
                lines += measure(case, systems, size, calls, seconds, clock)
    report = to_markdown(lines, clock)
    print("\n" + report)
    if json_file is not None:
        document = {
            "machine": machine(),
            "clock_seconds": clock,
            "lines": [asdict(line) for line in lines],
        }
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if markdown is not None:
        markdown.write_text(report, encoding="utf-8")


def all_cases(names: list[str]) -> Iterator[Case]:
    """Yield the other benchmarks' models of depth 8, and LightGBM's classifier."""
    for case in cases(names):
        if not case.name.endswith("-full"):
            yield case
    name = "LGBMClassifier-8"
    if names and not any(part in name for part in names):
        return
    try:
        from lightgbm import LGBMClassifier
    except ImportError as error:
        print(f"{name} is left out: {error}")
        return
    X = np.random.default_rng(0).standard_normal((4096, 28))
    y = ((X[:, :6] ** 2).sum(axis=1) > 6).astype(int)
    model = LGBMClassifier(
        n_estimators=100,
        max_depth=8,
        num_leaves=255,
        n_jobs=1,
        verbose=-1,
        random_state=0,
    )
    yield Case(name, model.fit(X, y), load_forest(model), X, "trained on")


# ------------------------------------------------------------ who answers


def checked_systems(case: Case, sizes: list[int], others: bool) -> list[System]:
    """Return all that answer for a model, skforge's after a look at their answers."""
    theirs = own_calls(case)
    answers = {s.answer: np.asarray(s.call(case.rows)) for s in theirs}
    ours = our_calls(case, answers)
    for system in ours:
        for size in sizes:
            found = _in_batches(system.call, case.rows[:CHECKED_ROWS], size)
            expected = answers[system.answer][: len(found)]
            difference = describe_difference(found, expected)
            if difference is not None:
                sys.exit(
                    f"{case.name}: {system.name} of {size} rows differs: {difference}"
                )
    systems = [*ours, *theirs]
    if others and case.model is not None:
        systems += peers(case.model)
    return systems


def peers(model: Model) -> Iterator[System]:
    """Yield peers in this process that read the model; their answers are their own."""
    for name in ("treelite", "onnxruntime"):
        try:
            loaded = getattr(loaders, name)(asdict(model))
        except Exception as error:  # noqa: BLE001 (a peer's failure is not ours)
            print(f"  {name} is left out: {error}")
            continue
        yield System(name, loaded.predict(1), "")


def _in_batches(call: Call, rows: NDArray[Any], size: int) -> NDArray[Any]:
    parts = (rows[at : at + size] for at in range(0, len(rows) - size + 1, size))
    return np.concatenate([np.ascontiguousarray(call(part)) for part in parts])


def our_calls(case: Case, answers: Answers) -> list[System]:
    """Return the estimator's methods, and compiled entries under their own names."""
    model = CompiledForest(case.source).fit(case.rows)
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
    return [
        System(name, call, named[name])
        for name, call in methods.items()
        if named[name] in answers
    ]


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
    """Return calls of the model's own library, on one thread."""
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


# ------------------------------------------------------------ how long it takes


def measure(
    case: Case,
    systems: list[System],
    size: int,
    calls: int,
    seconds: float,
    clock: float,
) -> list[Line]:
    """Return a line for each system; rows change from call to call."""
    pool = np.resize(case.rows, (POOL * size, case.rows.shape[1]))
    batches = [np.ascontiguousarray(part) for part in np.split(pool, POOL)]
    samples: dict[str, list[int]] = {s.name: [] for s in systems}
    for system in systems:
        for batch in batches:  # hot: compiled, cached, allocated
            system.call(batch)
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for system in systems:
                taken = time_calls(
                    system.call, batches, calls // ROUNDS, seconds / ROUNDS
                )
                samples[system.name] += taken
    finally:
        gc.enable()
    lines = []
    for system in systems:
        taken = np.array(samples[system.name]) * 1e-9 - clock
        p50, p99, p999 = (max(0.0, float(x)) for x in np.quantile(taken, QUANTILES))
        lines.append(
            Line(
                case.name, size, system.name, system.answer, len(taken), p50, p99, p999
            )
        )
        print(
            f"  {size} row(s), {system.name:32} "
            + "".join(f"{duration(x):>10}" for x in (p50, p99, p999)),
            flush=True,
        )
    return lines


QUANTILES = (0.5, 0.99, 0.999)


def time_calls(
    call: Call, batches: list[NDArray[Any]], calls: int, seconds: float
) -> list[int]:
    """Return the nanoseconds of each call, the clock's own among them."""
    taken: list[int] = []
    end = perf_counter() + seconds
    while len(taken) < calls and (
        perf_counter() < end or len(taken) < FEWEST // ROUNDS
    ):
        for batch in batches:
            start = perf_counter_ns()
            call(batch)
            taken.append(perf_counter_ns() - start)
    return taken


def clock_cost() -> float:
    """Return the seconds that are measured around a builtin that does nothing."""
    batches = [np.zeros((1, 1))] * POOL
    nothing: Call = id
    return float(np.median(time_calls(nothing, batches, 20_000, 1.0))) * 1e-9


def to_markdown(lines: list[Line], clock: float) -> str:
    """Return the table; the last column is how many times our predict is faster."""
    facts = machine()
    versions = ", ".join(f"{name} {v}" for name, v in facts["packages"].items())
    rows = [
        f"{facts['target']}; Python {facts['python']}, {versions}; load average "
        f"{facts['load_average']:.1f}; {facts['measured']}. One thread; the clock's "
        f"{duration(clock)} are subtracted. Every skforge answer was bit-identical to "
        "the model's own library before it was timed.\n",
        "| model | rows | call | answer | p50 | p99 | p99.9 | by our predict |",
        "|---|--:|---|---|--:|--:|--:|--:|",
    ]
    ours = {(x.model, x.rows): x.p50 for x in lines if x.system == OURS}
    for x in lines:
        base = ours.get((x.model, x.rows))
        ratio = "" if not base else f"{x.p50 / base:.2f}×"
        rows.append(
            f"| {x.model} | {x.rows} | {x.system} | {x.answer or 'its own'} "
            f"| {duration(x.p50)} | {duration(x.p99)} "
            f"| {duration(x.p999) if x.calls >= 1000 else '–'} | {ratio} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    typer.run(main)
