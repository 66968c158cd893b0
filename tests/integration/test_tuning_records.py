"""Tests of ``unit/test_tuning_records.py`` that compile or start processes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from skforge.tuning import TuningRecords
from tests.unit.test_tuning_records import record


def _append(path, number):
    for i in range(20):
        TuningRecords(path).add(record(100 * number + i))


def test_many_processes_append_at_once(tmp_path):
    path = tmp_path / "records.jsonl"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_append, [path] * 2, range(2)))
    found = {one.strategy for one in TuningRecords(path)}
    assert found == {f"strategy {100 * n + i}" for n in range(2) for i in range(20)}
