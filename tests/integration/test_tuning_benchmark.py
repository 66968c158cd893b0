"""Each benchmark of tuning runs once."""

from __future__ import annotations

import sys
from pathlib import Path

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


@pytest.mark.parametrize("figure", ["fig2", "fig5", "fig12"])
def test_one_figure_of_the_paper_is_drawn(benchmarks, tmp_path, monkeypatch, figure):
    pytest.importorskip("matplotlib")
    paper, sizes = benchmarks["paper"], len(benchmarks["tuning"].BATCHES)
    times = [{"a": 1.0, "b": 3.0 + n} for n in range(sizes)]
    both = {("m", "host"): times, ("m", "v3"): times[::-1]}
    monkeypatch.setattr(paper, "measured", lambda *_: (both, []))
    paper.main(figure, quick=True, output=tmp_path / "new")
    assert [file.name for file in (tmp_path / "new").iterdir()] == [f"{figure}.png"]
