"""Benchmarks compare answers, run, and show the numbers that are stored."""

from __future__ import annotations

import math
import re
import sys
import warnings
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from skforge import load_forest
from skforge.compiler.target import Target
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn
from tests.programs import ROOT, benchmark_modules

sys.path.insert(0, str(ROOT / "benchmarks"))

from cases import Case
from conditions import Limits, time_calls
from latency import Plan, batches_of, checked_systems, measure

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """Return a function that imports modules of benchmarks/, which are no package."""
    pytest.importorskip("xgboost")
    with benchmark_modules(monkeypatch) as module:
        yield module


def test_two_columns_compare_with_the_chance_of_yes(benchmarks):
    compare = benchmarks("measure").compare
    yes = np.array([0.25, 0.75])
    both = np.stack([1 - yes, yes], axis=1)
    assert compare(both, yes) == (0.0, True)
    assert compare(yes[:, None], both) == (0.0, True)
    assert compare(both + np.array([0, 0.5]), yes) == (0.5, False)


def test_other_shapes_and_other_bits_are_no_agreement(benchmarks):
    compare = benchmarks("measure").compare
    difference, same = compare(np.zeros((4, 3)), np.zeros(4))
    assert math.isnan(difference) and not same
    assert compare(np.zeros(4), -np.zeros(4)) == (0.0, False)
    assert compare(np.zeros(4, np.float32), np.zeros(4)) == (0.0, False)
    assert compare(np.array([np.nan]), np.array([np.nan])) == (0.0, True)


@pytest.mark.parametrize("name", ["synthetic-20x8-6-1", "stand-in-small"])
def test_random_models_predict_what_xgboost_predicts(benchmarks, monkeypatch, name):
    xgboost = pytest.importorskip("xgboost")
    from skforge import load_forest
    from skforge.forest.reference import reference_raw

    synthetic = benchmarks("synthetic")
    small = synthetic.Shape(12, 5, 4, 3, "multi:softprob")
    monkeypatch.setitem(synthetic.STAND_INS, "stand-in-small", small)
    made = synthetic.random_model(name)
    rows = made.rows[:300]
    found = reference_raw(load_forest(made.model), rows)
    wanted = made.model.predict(xgboost.DMatrix(rows), output_margin=True)
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
    for shape in synthetic.STAND_INS.values():
        assert shape.trees % shape.classes == 0


def test_tables_and_pictures_are_those_of_the_stored_numbers(benchmarks, tmp_path):
    pytest.importorskip("matplotlib")
    stored = FOLDER / "results"
    redraw = benchmarks("redraw")
    redraw.redraw(stored, tmp_path)
    pages = {file.name for file in stored.glob("*.md")}
    made = {f"{name}.md" for name in redraw.PAGES}
    frozen = {f"{name}.md" for name in redraw.FROZEN}
    # What llvm-mca says of loops is not stored.
    by_hand = {"README.md", "modelled.md", "platforms.md", "sizing.md"}
    assert pages == made | frozen | by_hand
    for file in sorted(made):
        assert (tmp_path / file).read_text() == (stored / file).read_text(), file
    harness, engines = benchmarks("harness"), benchmarks("engines_report")
    sizes = engines.sizing(harness.stored(stored, "distributed"))
    page = (stored / "sizing.md").read_text()
    assert harness.between(page, "sizing", sizes) == page
    ratios = (tmp_path / "results.svg").read_text()
    assert ">airline.json<" in ratios and ">65,536<" in ratios
    calls = (tmp_path / "latency.svg").read_text()
    assert ">CompiledForest.predict<" in calls and ">onnxruntime<" in calls


def test_figures_of_readme_are_those_of_the_results(benchmarks):
    front_page = benchmarks("front_page")
    page = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert front_page.with_figures(page, FOLDER / "results") == page
    for what in front_page.SHOWN.values():
        assert f"| {what} | " in page
    with pytest.raises(ValueError, match="the page has no <!-- figures:begin"):
        front_page.with_figures("# A page", FOLDER / "results")


def test_the_picture_of_readme_is_that_of_the_results(benchmarks):
    front_page = benchmarks("front_page")
    results = front_page.read(FOLDER / "results")
    drawn = (FOLDER / "results" / front_page.PICTURE).read_text(encoding="utf-8")
    shown = [text.strip() for text in re.findall(r"<text[^>]*>(.*?)</text>", drawn)]
    assert shown[-1] == front_page.TITLE
    page = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"!\[(.*?)\]\(benchmarks/results/speed.svg\)", page)
    for rows, title in front_page.ROWS.items():
        found = front_page.bars(results, rows)
        panel = shown[: shown.index(title)]
        shown = shown[shown.index(title) + 1 :]
        for name, ratios in found.items():
            assert f">{name}<" in drawn
            mean = front_page.times(front_page.geometric_mean(ratios))
            assert mean in panel
            assert mean.rstrip("×") in words
            low, high = front_page.interval(ratios) or (1, 1)
            assert low <= front_page.geometric_mean(ratios) <= high


def test_the_first_sentence_says_what_the_picture_shows(benchmarks):
    front_page = benchmarks("front_page")
    claim = front_page.claim(front_page.read(FOLDER / "results"))
    for page in ("README.md", "docs/index.md"):
        text = (FOLDER.parent / page).read_text(encoding="utf-8")
        assert f"{claim} as fast" in text.partition("![")[0]


def test_exports_are_compared_and_numbers_rounded(benchmarks):
    export = benchmarks("export")
    ones = np.ones(8, np.float32)
    assert export._compared(ones, ones) == "same bits"
    other = ones.copy()
    other[:2] += np.float32(0.5)
    assert export._compared(other, ones) == "25.00% differ, by 0.5 at most"
    texts = [export._three(value) for value in (0.1314, 1.0, 9.996, 64.51, 4096.4)]
    assert texts == ["0.131", "1.00", "10.00", "64.5", "4,096"]


def test_forms_of_rows_are_compared_before_they_are_timed(benchmarks):
    forms = benchmarks("forms")
    X = np.arange(12.0).reshape(1, 12)
    assert forms.differences(lambda X: X[0], lambda X: X[0], X) == ""
    assert forms.differences(lambda X: X[0], lambda X: X[0] + 1, X) == "answers"
    assert "IndexError" in forms.differences(lambda X: X[5], lambda X: X[0], X)

    def warn(X):
        warnings.warn("names", UserWarning, stacklevel=1)
        return X

    assert "UserWarning: names" in forms.differences(lambda X: X, warn, X)
    found = list(forms.cells(["LGBMR"], ["float64", "list"], [2], 3, 1e-4))
    assert [(cell.trained, cell.form) for cell in found] == [
        (trained, form)
        for trained in ("array", "array, loaded", "frame", "frame, loaded")
        for form in ("float64", "list")
    ]
    assert all(cell.ratio > 0 for cell in found)


def test_starts_of_processes_are_put_together(benchmarks):
    cold = benchmarks("cold_start")
    runs = [
        {
            "seconds": {"numpy": 0.05, "imports": a, "load": 0.002, "first": b}
            | {"last": 4e-6},
            "bytes": {"rss": 3 << 20},
            "answers": {"dtype": "float32", "values": [0.1, 2.5]},
        }
        for a, b in ((0.1, 0.3), (0.2, 0.1), (0.9, 0.2))
    ]
    found = cold.answers(runs[0])
    assert found.dtype == np.float32
    assert cold.agreement(found, np.float32([0.1, 2.5])) == "same bits"
    assert cold.agreement(found + 1, found) == "differ by 1.0e+00"
    start = cold.put_together(cold.Start("m", "skforge", answers="same bits"), runs)
    start.file_bytes = 3 << 19
    # The total is the median of totals, not the total of medians.
    assert start.seconds["total"] == pytest.approx(0.452)
    cells = "50.0 | 200.0 | 2.0 | 200.0 | **452** | 1,152 | 4.0 | 3 | – | – | 1.5"
    assert " | ".join(cold.row(start)) == f"skforge | {cells} | same bits"


def test_a_process_that_starts_answers_and_counts(benchmarks, monkeypatch, tmp_path):
    system = "skforge, empty cache"
    cold, training = benchmarks("cold_start"), benchmarks("cold_start").training
    X, y = training.table(200, 4)
    made = training.xgboost(X, y, 3, max_depth=2)
    np.save(tmp_path / "rows.npy", made.rows[: cold.ROWS])
    root = str(FOLDER.parent)
    monkeypatch.setenv("PYTHONPATH", root)
    file = cold._file(system, made, tmp_path)
    found = cold.started(system, file, tmp_path / "rows.npy", tmp_path, -1)
    assert set(found["seconds"]) == {*cold.STEPS, "last"}
    expected = made.model.inplace_predict(made.rows[: cold.ROWS])
    assert cold.agreement(cold.answers(found), expected) == "same bits"
    assert cold.size(file) > 0
    with pytest.raises(RuntimeError, match="No such file"):
        cold.started(system, file, tmp_path / "none.npy", tmp_path, -1)


@pytest.fixture
def small_pipelines(benchmarks, monkeypatch):
    """Two cases with few rows and trees."""
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer, StandardScaler

    pytest.importorskip("pandas")
    pipelines, cases = benchmarks("pipelines"), benchmarks("pipelines_cases")

    def scaled(mark):
        return make_pipeline(StandardScaler(), RandomForestClassifier(3))

    def splines(mark):
        columns = ColumnTransformer([("a", SplineTransformer(), ["age"])])
        return make_pipeline(columns, RandomForestClassifier(3))

    small = {
        "scaled": cases.Case(cases.numbers, scaled, 60, arrays=True),
        "splines": cases.Case(cases.adult, splines, 60),
    }
    monkeypatch.setattr(pipelines, "CASES", small)
    for name, count in (("N_COMPARED", 100), ("N_SINGLE", 4), ("ROUNDS", 2)):
        monkeypatch.setattr(pipelines, name, count)
    systems = {name: pipelines.SYSTEMS[name] for name in ("skforge", "scikit-learn")}

    def absent(case):
        raise ValueError("not | a\nsystem")

    monkeypatch.setattr(pipelines, "SYSTEMS", systems | {"absent": absent})
    return pipelines


def test_pipelines_are_compared_and_timed(small_pipelines, tmp_path):
    pipelines = small_pipelines
    found = list(pipelines.cells(["scaled"], [1, 8], 1e-4))
    timed = {(c.form, c.rows, c.system): c for c in found if c.seconds}
    for form, n in (("array", 1), ("array", 8), ("pandas frame", 1)):
        ours, source = (timed[form, n, s] for s in ("skforge", "scikit-learn"))
        assert ours.difference == ours.differ == 0.0
        assert ours.ratio == 1.0 and source.ratio > 1.0
    assert ("mapping", 1, "scikit-learn") in timed
    folded = [pipelines.folding(name, case) for name, case in pipelines.CASES.items()]
    assert folded[0].seconds > folded[0].last_seconds
    assert folded[0].tests >= folded[0].folded > 0
    document = {"facts": pipelines.machine(), "cells": list(map(asdict, found))}
    text = pipelines.page({**document, "folding": list(map(asdict, folded))})
    assert text.startswith("# Pipelines\n")
    assert "absent – cannot: ValueError: not / a system\n" in text
    assert "| array, 8 | " in text
    pipelines.plot(found, tmp_path / "pipelines.png")
    assert (tmp_path / "pipelines.png").stat().st_size


def test_other_bits_of_ours_end_a_run_of_pipelines(small_pipelines, monkeypatch):
    pipelines = small_pipelines
    right = pipelines.SYSTEMS["skforge"]

    def wrong(case):
        ways = right(case)
        way = ways["array"]
        made = type(way)(way.make, lambda X: np.nextafter(way.call(X), 2))
        return ways | {"array": made}

    monkeypatch.setitem(pipelines.SYSTEMS, "skforge", wrong)
    with pytest.raises(SystemExit, match="scaled, array, 100 rows: answers"):
        list(pipelines.cells(["scaled"], [1], 1e-4))


@pytest.mark.parametrize("told", [("b", ""), ("a", "UserWarning: ")])
def test_programs_that_answer_or_warn_otherwise_are_told(benchmarks, monkeypatch, told):
    module = benchmarks("programs_compared")
    calls = {"kernel_calls": 2, "library_calls": 1, "differed": 0}

    def run(program, made, accelerated, eager=False):
        digest, said = told if accelerated else ("a", "")
        return SimpleNamespace(digest=digest, said=said), calls

    monkeypatch.setattr(module, "run", run)
    line = module.compared(module.PROGRAMS[0])
    assert not line["same"]
    (words,) = module.compared_table({"lines": [line]})[2:]
    assert "2 of 3" in words
    assert "**others**" in words


# ------------------------------------------------------------ tuning


def test_matrices_say_what_a_carried_schedule_loses(benchmarks):
    plots = benchmarks("tuning_plots")
    times = [{"a": 1.0, "b": 3.0}, {"a": 4.0, "b": 2.0}, {"c": 1.0}]
    (whole,) = plots.wholes_of({("model", "host"): times})
    assert whole.legal == 2 and whole.best.tolist() == [1.0, 2.0, 1.0]
    made = plots.slowdowns(list(whole.seconds.T))
    assert made[0, 1] == 3.0 and made[1, 0] == 2.0
    assert np.isnan(made[0, 2]) and np.isnan(made[2, 0])
    assert (np.diag(made) == 1.0).all()


def test_a_point_that_another_gpu_lacks_gives_way_to_the_next(benchmarks):
    plots = benchmarks("tuning_plots")
    nan = np.nan
    first, other = np.array([1.0, 2.0, nan, 3.0]), np.array([nan, 6.0, 3.0, 4.0])
    assert plots.carried(first, other) == 2.0
    assert plots.carried(first, first) == 1.0
    found = plots.slowdowns([first, other])
    np.testing.assert_array_equal(found, [[1.0, nan], [nan, 1.0]])


def test_figures_are_drawn_of_all_machines(benchmarks, tmp_path):
    pytest.importorskip("matplotlib")
    module = benchmarks("tuning")
    times = [{"a": 1.0, "b": 3.0 + n} for n in range(len(module.BATCHES))]
    by_model = {("m", "host"): times, ("n", "host"): times, ("m", "v3"): times}
    rows = [
        {"model": model, "target": target, "strategy": name, "slowdown": 1.5,
         "seconds": seconds}
        for model, target in by_model
        for name, seconds in (("quick", 0.0), ("exhaustive", 9.0))
    ]  # fmt: skip
    module.draw(by_model, rows, tmp_path)
    names = {file.stem.removeprefix("tuning-") for file in tmp_path.glob("*.png")}
    assert names == {"distribution", "sensitivity", "strategies", "hardware"}


def test_a_sweep_times_each_code_once_and_nothing_again(
    benchmarks, tmp_path, monkeypatch
):
    module, forest = benchmarks("tuning_recorded"), drawn(5, 3)
    file, target = tmp_path / "times.jsonl", Target.host()
    first = Schedule().interleave("tree", 2)
    refused = Schedule().gpu_dimension("batch", "grid.x")
    machine = module.Recorded(file, forest, None, target)
    assert machine.sweep([first, Schedule(), first, refused], (1, 4)) == 2
    times = machine.times(4)
    assert set(times) == {first.to_json(), Schedule().to_json()}
    assert machine.build_seconds > 0
    again = module.Recorded(file, forest, None, target)
    monkeypatch.setattr(again, "_machine", None)  # would be asked to compile
    assert again.sweep([first, Schedule()], (1, 4)) == 2
    assert again.times(4) == times


def test_made_up_slowdowns_are_reported_by_strategy(benchmarks):
    module = benchmarks("tuning")
    rows = [
        {"model": "a", "target": "host", "batch": 1, "strategy": name,
         "slowdown": slowdown, "alone": slowdown, "seconds": seconds, "tried": 3}
        for name, slowdown, seconds in (("quick", 1.25, 0.5), ("exhaustive", 1.0, 50.0))
    ]  # fmt: skip
    known = {"points": 1373, "legal": [1203, 1203], "budget": 2.0}
    text = module.page({**known, "rows": rows})
    assert "| quick | 1.250 | 1.25 |  |  | 1.250 | 0% | 0.50 | 1/100 | 3 |" in text
    assert "1,373 points: 1,203 to 1,203 of them" in text


def test_rivals_of_the_defaults_are_timed_where_they_are_missing(benchmarks):
    module, target = benchmarks("default_choices"), Target.host()
    forest = drawn(5, 3)
    sample = type("Sample", (), {"forest": forest, "rows": None})()
    found = dict(module.timed(sample, target, [16]))
    own = module.default(forest, target, 16).to_json()
    assert own in found[16] and len(found[16]) > 1
    slowdown, seconds, words = module.loss(forest, target, 16, found[16])
    assert seconds == found[16][own] == slowdown * min(found[16].values())
    assert words.startswith(module.in_short(module.default(forest, target, 16)))
    assert list(module.timed(sample, target, [])) == []


def test_defaults_that_take_longer_with_more_rows_are_listed(benchmarks):
    module, names = benchmarks("default_choices"), ("few", "many")
    taken = {(n, "host", 64): (1e-6 * 64, f"lanes of {n} | best") for n in names}
    taken |= {("few", "host", 8): (3e-6 * 8, "rows | best")}
    taken |= {("many", "host", 512): (1.25e-6 * 512, "tiles | best")}
    grown = module.growth(taken)
    assert grown == {
        ("few", "host", 64): (pytest.approx(1 / 3), "rows, 8 rows | lanes of few"),
        ("many", "host", 512): (pytest.approx(1.25), "lanes of many, 64 rows | tiles"),
    }
    cells = [[*key, *value] for key, value in grown.items()]
    document = {"machine": module.machine(), "cpus": {"host": "here"}, "loss": []}
    text = module.page({**document, "growth": cells})
    assert "In 1 of 2 cells" in text
    assert "| many | host | 512 | 1.25 | lanes of many, 64 rows | tiles |" in text
    assert "| few |" not in text


@pytest.mark.parametrize("figure", ["fig2", "fig5", "fig12"])
def test_one_figure_of_the_paper_is_drawn(benchmarks, tmp_path, monkeypatch, figure):
    pytest.importorskip("matplotlib")
    paper, sizes = benchmarks("paper"), len(benchmarks("tuning").BATCHES)
    times = [{"a": 1.0, "b": 3.0 + n} for n in range(sizes)]
    both = {("m", "host"): times, ("m", "v3"): times[::-1]}
    monkeypatch.setattr(paper, "measured", lambda *_: (both, []))
    paper.main(figure, quick=True, output=tmp_path / "new")
    assert [file.name for file in (tmp_path / "new").iterdir()] == [f"{figure}.png"]


# ------------------------------------------------------------ latency

BATCHES = [np.full((1, 1), i) for i in range(64)]
FEW = Limits(24)
PLAN = Plan(("hot",), Limits(1000), Limits(1000, 0.0, 40), 16, 1 << 10, 0.0, 0.0)


@pytest.mark.parametrize("calls", [0, 1, 63, 64, 65, 1000])
def test_as_many_calls_as_asked_each_on_other_rows(calls: int) -> None:
    seen = []
    taken = time_calls(lambda X: seen.append(int(X[0, 0])), BATCHES, Limits(calls))
    assert len(taken) == len(seen) == calls
    assert seen == [i % 64 for i in range(calls)]


def test_caches_are_evicted_before_each_call() -> None:
    events: list[str] = []
    time_calls(
        lambda X: events.append("call"), BATCHES, FEW, lambda: events.append("evict")
    )
    assert events == ["evict", "call"] * 24


@pytest.mark.parametrize(
    ("condition", "ours", "theirs"),
    [("evicted", 16, 16), ("busy", 1000, 40)],
)
def test_a_line_for_each_system_with_its_calls(
    condition: str, ours: int, theirs: int
) -> None:
    X = np.random.default_rng(0).random((64, 3), np.float32)
    model = RandomForestClassifier(3, max_depth=3, random_state=0)
    model.fit(X, (X[:, 0] > 0.5).astype(int))
    case = Case("small", model, load_forest(model), X, "trained on")
    systems = checked_systems(case, [1], ())
    lines = measure(case, systems, 1, condition, PLAN)
    assert [line.system for line in lines] == [s.name for s in systems]
    for system, line in zip(systems, lines, strict=True):
        least = ours if system.ours else theirs
        # a few more where the calls between two looks at the time are
        most = least if system.ours else max(least, 8 * 64)
        assert least <= line.calls <= most
        assert (line.others_calls > 0) == (condition == "busy")
        assert line.p50 <= line.p99 <= line.p999 <= line.slowest


def test_batches_are_rows_in_their_own_memory() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    batches = batches_of(rows, 3)
    assert {b.shape for b in batches} == {(3, 3)} and len(batches) == 4096
    wide = batches_of(np.zeros((1, 4000)), 1)  # a megabyte, or 64 batches
    assert len(wide) == 64
    assert all(b.base is None and b.flags.c_contiguous for b in batches)
