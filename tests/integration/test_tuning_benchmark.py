"""Each benchmark of tuning runs once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from skforge.compiler.target import Target
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """The modules of benchmarks/, which are no package."""
    pytest.importorskip("xgboost")
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    import default_choices
    import paper
    import tuning
    import tuning_plots
    import tuning_recorded

    found = {
        m.__name__: m
        for m in (default_choices, paper, tuning, tuning_plots, tuning_recorded)
    }
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).parent == FOLDER:
            monkeypatch.delitem(sys.modules, name)
    return found


def test_matrices_say_what_a_carried_schedule_loses(benchmarks):
    plots = benchmarks["tuning_plots"]
    times = [{"a": 1.0, "b": 3.0}, {"a": 4.0, "b": 2.0}, {"c": 1.0}]
    (whole,) = plots.wholes_of({("model", "host"): times})
    assert whole.legal == 2 and whole.best.tolist() == [1.0, 2.0, 1.0]
    made = plots.slowdowns(list(whole.seconds.T))
    assert made[0, 1] == 3.0 and made[1, 0] == 2.0
    assert np.isnan(made[0, 2]) and np.isnan(made[2, 0])
    assert (np.diag(made) == 1.0).all()


def test_a_point_that_another_gpu_lacks_gives_way_to_the_next(benchmarks):
    plots = benchmarks["tuning_plots"]
    nan = np.nan
    first, other = np.array([1.0, 2.0, nan, 3.0]), np.array([nan, 6.0, 3.0, 4.0])
    assert plots.carried(first, other) == 2.0
    assert plots.carried(first, first) == 1.0
    found = plots.slowdowns([first, other])
    np.testing.assert_array_equal(found, [[1.0, nan], [nan, 1.0]])


def test_figures_are_drawn_of_all_machines(benchmarks, tmp_path):
    pytest.importorskip("matplotlib")
    module = benchmarks["tuning"]
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
    module, forest = benchmarks["tuning_recorded"], drawn(5, 3)
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
    module = benchmarks["tuning"]
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
    module, target = benchmarks["default_choices"], Target.host()
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
    module, names = benchmarks["default_choices"], ("few", "many")
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
    paper, sizes = benchmarks["paper"], len(benchmarks["tuning"].BATCHES)
    times = [{"a": 1.0, "b": 3.0 + n} for n in range(sizes)]
    both = {("m", "host"): times, ("m", "v3"): times[::-1]}
    monkeypatch.setattr(paper, "measured", lambda *_: (both, []))
    paper.main(figure, quick=True, output=tmp_path / "new")
    assert [file.name for file in (tmp_path / "new").iterdir()] == [f"{figure}.png"]
