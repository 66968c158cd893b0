"""Records of searches: found again, appended by many, robust against damage."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from skforge.compiler.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, TuningWarning
from skforge.tuning import Candidate, Round, Tuner, TuningRecords
from skforge.tuning.records import Record, RecordKey, forest_key
from tests.exactness.forests import drawn
from tests.tuning_tools import FakeMachine

FOREST = drawn(20, 4)
TARGET = Target.x86_64("v4")
FAST = Schedule().interleave("tree", 7)
SIZES = {(1, 1): 1}


class OneCandidate:
    name = "one"

    def rounds(self, problem):
        yield Round([Candidate(FAST, {}, self.name)])


def search(records, ranges=SIZES, target=TARGET, forest=FOREST):
    machine = FakeMachine(forest, lambda s, n: 5e-6 if s == FAST else 1e-5)
    tuner = Tuner(OneCandidate(), records=records, measurer=machine)
    return machine, tuner.tune(forest, ranges=ranges, target=target)


def record(number=0, version="1.0"):
    key = RecordKey("f", "t", "exact", 1, (((1, 1), 1),), version)
    return Record(key, {(1, None): FAST}, f"strategy {number}", True, 1.5, "here")


def test_a_second_search_measures_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    _, first = search(path)
    machine, again = search(TuningRecords(path))
    assert again.table == first.table == {(1, 1): FAST}
    assert machine.built == [] and machine.now == 1000.0
    assert again.trials == () and again.strategy == "record"
    assert again.notes[0].startswith("from a record of one, ")
    assert "not measured" in again.summary()


def test_records_hold_for_one_shape_machine_and_range(tmp_path):
    path = tmp_path / "records.jsonl"
    search(path)
    for other in (
        {"ranges": {(1, 2): 2}},
        {"ranges": None},
        {"target": Target.x86_64("v3")},
        {"forest": drawn(21, 4)},
    ):
        machine, _ = search(path, **other)
        assert machine.built
    assert len(TuningRecords(path)) == 5


def test_a_shape_is_not_its_thresholds():
    moved = replace(FOREST, threshold=FOREST.threshold + FOREST.threshold.dtype.type(1))
    assert forest_key(moved) == forest_key(FOREST)
    assert forest_key(drawn(20, 5)) != forest_key(FOREST)


def test_lines_round_trip():
    one = record()
    assert Record.from_line(one.to_line()) == one
    assert one.to_line().count("\n") == 1


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", '{"record": 1}', '{"record": 99}', "\x00\xff"],
)
def test_damaged_lines_are_left_out(line, tmp_path):
    path = tmp_path / "records.jsonl"
    records = TuningRecords(path)
    records.add(record(1))
    with path.open("a", encoding="latin-1") as file:
        file.write(line)  # and no end of line: the writer died
    records.add(record(2))
    if line:
        with pytest.warns(TuningWarning, match="1 line.s. that are no records") as seen:
            found = [one.strategy for one in records]
        assert [w.filename for w in seen] == [__file__]
    else:
        found = [one.strategy for one in records]
    assert found == ["strategy 1", "strategy 2"]


def test_another_release_measures_anew(tmp_path):
    path = tmp_path / "records.jsonl"
    search(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "version": "0.0.1"}) + "\n")
    machine, _ = search(path)
    assert machine.built


def test_a_complete_search_is_preferred(tmp_path):
    records = TuningRecords(tmp_path / "records.jsonl")
    half = replace(record(2), complete=False)
    records.add(record(1), half)
    assert records.find(half.key).strategy == "strategy 1"


def _append(path, number):
    for i in range(20):
        TuningRecords(path).add(record(100 * number + i))


def test_many_processes_append_at_once(tmp_path):
    path = tmp_path / "records.jsonl"
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        list(pool.map(_append, [path] * 3, range(3)))
    found = {one.strategy for one in TuningRecords(path)}
    assert found == {f"strategy {100 * n + i}" for n in range(3) for i in range(20)}


def test_export_and_merge(tmp_path):
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    TuningRecords(here).add(record(1), record(2), record(3, "2.0"))
    assert TuningRecords(here).export(there) == 2
    assert [r.strategy for r in TuningRecords(there)] == ["strategy 2", "strategy 3"]
    assert TuningRecords(here).export(tmp_path / "c.jsonl", TARGET) == 0
    other = TuningRecords(tmp_path / "d.jsonl")
    assert other.merge(there) == 2
    assert other.merge(there) == 0
    with pytest.raises(InvalidInputError, match="is no file of records"):
        other.merge(tmp_path / "absent.jsonl")
    with pytest.raises(InvalidInputError, match="exported to another file"):
        other.export(other.path)


def test_records_are_a_path():
    with pytest.raises(InvalidInputError, match="must be a path or TuningRecords"):
        search(3)
