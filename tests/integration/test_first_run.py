"""A GPU's first run, rehearsed: stages stop in time, go on, and lose nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest

from skforge import load_forest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
MODEL = "synthetic-12x6-4"


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The modules of the first run, and a folder for models of their own."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("SKFORGE_BENCH_CACHE", str(tmp_path / "cache"))
    before = set(sys.modules)
    from benchmarks.gpu import (
        first_run,
        first_run_items,
        first_run_report,
        first_run_setup,
        first_run_stages,
    )

    yield SimpleNamespace(
        run=first_run,
        items=first_run_items,
        stages=first_run_stages,
        setup=first_run_setup,
        report=first_run_report,
        log=lambda: first_run_items.Log(tmp_path / "out" / first_run.FILE),
    )
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and FOLDER in Path(file).parents:
            del sys.modules[name]


class Works:
    """Items that note that they ran; some fail, some end the process."""

    def __init__(self, first: SimpleNamespace, **bad: BaseException) -> None:
        self.ran: list[str] = []
        self.bad = bad
        self.items = [
            first.items.Item(name, lambda name=name: self.work(name), kernels=10)
            for name in "abcd"
        ]

    def work(self, name: str) -> dict[str, object]:
        self.ran.append(name)
        if name in self.bad:
            raise self.bad[name]
        return {"name": name, "wrong": ["a bit"] if name == "d" else []}


def stage(first: SimpleNamespace, works: Works, seconds: float = 100, **how) -> int:
    end = monotonic() + seconds
    say = how.pop("say", lambda _: None)
    return first.items.run_stage(2, works.items, first.log(), end, say=say, **how)


@pytest.mark.parametrize(
    "numbers",
    [(1, 4, 6, 7, 8), pytest.param(tuple(range(1, 9)), marks=pytest.mark.slow)],
)
def test_a_rehearsal_without_a_gpu(first, tmp_path, capsys, numbers) -> None:
    pytest.importorskip("xgboost")
    pytest.importorskip("matplotlib")
    first.setup.pack([MODEL], tmp_path / "models.zip")
    packed = {"names": MODEL, "packed": tmp_path / "models.zip", "quick": True}
    given = {"target": "emulated", "output": tmp_path / "out", **packed}
    for number in numbers:
        with pytest.raises(SystemExit) as ended:
            call(first, stage=number, minutes=9.0, **given)
        assert ended.value.code == 0, first.log().lines[-1]
        assert first.log().results(number)
    ((_, line),) = first.log().results(6).items()
    assert set(line["result"]["seconds"]["4 trees in flight"]) == {"16", "256"}
    ((_, line),) = first.log().results(7).items()
    assert line["result"]["wrong"] == [] and set(line["result"]["gpu"]) >= {"64"}
    skipped = [one["result"]["skipped"] for one in first.log().results(8).values()]
    assert skipped and set(skipped) <= {"no device", "no ncu on the PATH"}
    capsys.readouterr()
    call(first, plan_only=True, **given)
    said = capsys.readouterr().out
    assert len(said.splitlines()) == len(first.stages.STAGES) + 1
    assert "5 searches" in said and "together about" in said
    call(first, report=True, **given)
    text = (tmp_path / "out" / "first_run.md").read_text()
    first_row = "| 1 install | 5 | 0 | 1 | 0 |"
    for words in (first_row, "| 8 counters |", "this CPU", "## Designs"):
        assert words in text
    tables = (tmp_path / "out" / "gpu_random_emulated.md").read_text()
    assert "1 random models" in tables and MODEL in tables


def call(first: SimpleNamespace, **given) -> None:
    """Call the command with its defaults."""
    usual = {"stage": 0, "minutes": 1.0, "again": False, "pack": None, "kernel": ""}
    first.run.main(**{**usual, "plan_only": False, "report": False, **given})


def test_searches_are_held_to_all_of_table_5(first) -> None:
    times = {"0": {"512": 4e-6}, "7": {"512": 2e-6}}
    lines = {
        "Table 5, m, 0": {"result": {"seconds": times}},
        "Algorithm 1, m, 512 rows": {
            "result": {"seconds": {"512": 3e-6}, "taken": 9.5}
        },
    }
    text = "\n".join(first.report._searches(lines))
    assert "| m | 512 rows | Algorithm 1 | 3.0 | 2.0 | 1.50 | 9.5 |" in text


def test_counters_are_read_from_csv(first) -> None:
    name, metric = "Kernel Name", first.stages.METRICS[0]
    text = (
        f'==PROF== Connected\n"ID","{name}","{metric}","other"\n'
        '"","","ns",""\n"0","predict_0","1,234","5"\n'
    )
    assert first.stages.counted(text) == [{name: "predict_0", metric: "1,234"}]
    assert first.stages.counted("==ERROR== no permission") == []


def test_packed_models_are_read_without_their_library(
    first, monkeypatch, tmp_path
) -> None:
    pytest.importorskip("xgboost")
    first.setup.pack([MODEL], tmp_path / "models.zip")
    monkeypatch.setenv("SKFORGE_BENCH_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setitem(sys.modules, "xgboost", None)
    for _ in range(2):
        model = first.setup.unpacked(tmp_path / "models.zip", MODEL)
        assert tmp_path / "elsewhere" in Path(model.path).parents
        assert load_forest(model.path).n_trees == 12
        assert len(np.load(model.rows)) == first.setup.ROWS
