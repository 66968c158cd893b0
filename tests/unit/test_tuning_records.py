"""Records of searches: found again, appended by many, robust against damage."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest

from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, TuningWarning
from skforge.schedule.schedule import Schedule
from skforge.tuning import Candidate, Round, Tuner, TuningRecords
from skforge.tuning.records import Record, RecordKey, forest_key
from tests.exactness.forests import drawn
from tests.refusals import error_of
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
    assert again.notes[0].startswith("reused from a record of a one search of ")
    assert "\nThe schedules are those of an earlier search.\n" in again.summary()


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


def line_with(**changes):
    """Return the line of a record with other values, without an end."""
    content = {**json.loads(record().to_line()), **changes}
    return json.dumps(content, ensure_ascii=False)


PLAIN = json.loads(FAST.to_json())
LISTED = {**PLAIN, "directives": [{**PLAIN["directives"][0], "factor": [7]}]}


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[]", "null", '{"record": 1}', '{"record": 99}', "\x00\xff"),
        pytest.param("[" * 200_000, id="deep"),
        pytest.param(line_with(n_threads=float("inf")), id="infinite threads"),
        pytest.param(line_with(n_threads=True), id="true threads"),
        pytest.param(line_with(n_threads=0), id="no threads"),
        pytest.param(line_with(ranges=[[[1, [2]], 1]]), id="list in ranges"),
        pytest.param(line_with(ranges=[[[1, 1], [1]]]), id="list for a size"),
        pytest.param(line_with(ranges=[[[1, 1], float("nan")]]), id="NaN size"),
        pytest.param(line_with(seconds=float("nan")), id="NaN seconds"),
        pytest.param(line_with(seconds=10**400), id="no float"),
        pytest.param(line_with(seconds="1.5"), id="text for seconds"),
        pytest.param(line_with(forest=["f"]), id="list for a key"),
        pytest.param(line_with(complete=1), id="number for a truth"),
        pytest.param(line_with(table=[]), id="no table"),
        pytest.param(line_with(table=[[5, 2, PLAIN]]), id="backwards"),
        pytest.param(line_with(table=[[1, 9, PLAIN], [9, None, PLAIN]]), id="overlap"),
        pytest.param(line_with(table=[[1, None, PLAIN]] * 2), id="a range twice"),
        pytest.param(line_with(table=[[1, None, LISTED]]), id="list in a directive"),
        pytest.param(line_with(machine="\xff"), id="no UTF-8"),
    ],
)
def test_damaged_lines_are_left_out(line, tmp_path):
    path = tmp_path / "records.jsonl"
    records = TuningRecords(path)
    records.add(record(1))
    with path.open("a", encoding="latin-1") as file:
        file.write(line)  # and no end of line: the writer died
    records.add(record(2))
    if line:
        with pytest.warns(TuningWarning) as said:
            found = [one.strategy for one in records]
        assert [str(one.message) for one in said] == [
            f"{path}: line 2 is not a valid record of this version of skforge, so "
            "it is ignored."
        ]
        assert [one.filename for one in said] == [__file__]
        with pytest.warns(TuningWarning):
            assert records.find(record().key).strategy == "strategy 2"
    else:
        found = [one.strategy for one in records]
    assert found == ["strategy 1", "strategy 2"]


def test_many_damaged_lines_are_one_warning(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("{\n" * 8 + record(1).to_line())
    with pytest.warns(TuningWarning) as said:
        assert len(list(TuningRecords(path))) == 1
    assert [str(one.message) for one in said] == [
        f"{path}: lines 1, 2, 3, 4, 5 and 3 more are not valid records of this "
        "version of skforge, so they are ignored."
    ]


@pytest.mark.parametrize("damage", ["illegal", "short"])
def test_a_record_that_cannot_be_used_is_searched_anew(damage, tmp_path):
    path = tmp_path / "records.jsonl"
    search(path)
    content = json.loads(path.read_text())
    if damage == "illegal":
        unknown = Schedule().represent("nothing")
        content["table"][0][2] = json.loads(unknown.to_json())
        why = 'there is no representation "nothing"'
    else:
        content["table"][0][:2] = [3, 4]
        why = "it is for other batch sizes"
    path.write_text(json.dumps(content) + "\n")
    with pytest.warns(
        TuningWarning, match=r"1 record\(s\) in .* cannot be used"
    ) as said:
        machine, result = search(path)
    assert why in str(said[0].message)
    assert machine.built
    assert result.table == {(1, 1): FAST}
    machine, result = search(path)  # the new record; the old one is not asked again
    assert not machine.built


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_records_are_a_regular_file(make, tmp_path):
    path = tmp_path / "records.jsonl"
    make(path)
    for act in (lambda r: list(r), lambda r: r.add(record())):
        assert error_of(InvalidInputError, act, TuningRecords(path)) == (
            f"the records {path} are not a regular file; give the path of a regular "
            "file or of a new one."
        )


def test_a_search_that_cannot_be_recorded_is_not_lost(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "r.jsonl"
    with pytest.warns(TuningWarning) as said:
        _, result = search(path)
    assert result.table == {(1, 1): FAST}
    assert [str(one.message) for one in said] == [
        f"the result of the search was not recorded: {path} cannot be written (No "
        "space left on device)."
    ]


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


def test_export_and_merge(tmp_path):
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    TuningRecords(here).add(record(1), record(2), record(3, "2.0"))
    assert TuningRecords(here).export(there) == 2
    assert [r.strategy for r in TuningRecords(there)] == ["strategy 2", "strategy 3"]
    assert TuningRecords(here).export(tmp_path / "c.jsonl", TARGET) == 0
    other = TuningRecords(tmp_path / "d.jsonl")
    assert other.merge(there) == 2
    assert other.merge(there) == 0
    with pytest.raises(InvalidInputError, match="is not a file of tuning records"):
        other.merge(tmp_path / "absent.jsonl")
    with pytest.raises(InvalidInputError, match="cannot be exported to their own file"):
        other.export(other.path)


def test_records_are_a_path():
    with pytest.raises(InvalidInputError, match="must be a path or TuningRecords"):
        search(3)
