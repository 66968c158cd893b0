"""The learned strategy: its search, modes and cost model, on machines that are none."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from math import log

import numpy as np
import pytest

from skforge.compiler.defaults.cpu import ForestShape, default_schedules
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.runtime.module import compile_forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, InvalidModelError, ScheduleError
from skforge.tuning import CostModel, Learned, Problem, ScheduleSpace, Tuner
from skforge.tuning.cost.cost_model import SHIPPED
from skforge.tuning.cost.features import NAMES, Setting
from skforge.tuning.cost.forest_facts import ForestFacts
from skforge.tuning.search.learned_search import LearnedSearch
from skforge.tuning.space.tree_groups import (
    costliest,
    depth_groups,
    group_names,
    grouped_space,
)
from tests.exactness.forests import drawn
from tests.tuning_tools import FakeMachine

FOREST = drawn(20, 4)
SHAPE = ForestShape.of(FOREST)
TARGET = Target.x86_64("v4")
SPACE = ScheduleSpace.cpu(threads=False)
BATCH = (64, 64)
DEFAULT = next(
    s
    for (a, b), s in default_schedules(FOREST, TARGET).items()
    if a <= 64 and (b is None or b >= 64)
)
BEST = SPACE.schedule(
    next(p for p in SPACE if p["walk"] == "rows" and p["in_flight"] == 24), SHAPE
)


class Model:
    """A cost model that likes walks in flight, or what it is told to."""

    def __init__(self, log_row=None, margin=1.1):
        self.facts = {"margin": margin}
        self._log_row = log_row

    def log_row(self, featured):
        if self._log_row is not None:
            return self._log_row(featured.matrix)
        return -np.log(column(featured.matrix, "walks_in_flight"))


def column(matrix, name):
    return matrix[:, NAMES.index(name)]


def search(strategy, machine=None, **options):
    machine = machine or FakeMachine(FOREST, lambda s, n: 1e-5)
    options = {"ranges": {BATCH: 64}, "random_state": 0, "budget": 100.0, **options}
    space = options.pop("space", SPACE)
    return Tuner(strategy, space, measurer=machine).tune(
        FOREST, target=options.pop("target", TARGET), **options
    )


def proposed(result):
    return [t for t in result.trials if t.candidate.origin == "learned"]


# ------------------------------------------------------------------ the search


def separable(point):
    cost = {"walk": {"rows": 1.0}, "in_flight": {24: 1.0}, "hops": {"peel": 1.0}}
    made = 1.0
    for name, good in cost.items():
        made *= good.get(point[name], 2.0)
    return made


def searched(seed=0, judge=separable, space=SPACE, frozen=None, counted=None):
    def costs(points):
        if counted is not None:
            counted.extend(points)
        return [judge(p) for p in points]

    return LearnedSearch(space, costs, np.random.default_rng(seed), frozen)


def test_a_beam_finds_the_best_point_without_looking_at_all():
    counted = []
    one = searched(counted=counted)
    key = one.beam(32, 5)
    assert one.found.points[key] == 1.0 == separable(one.best)
    assert len(counted) < len(SPACE)
    assert all(point in SPACE for point in counted)
    assert len({tuple(p.items()) for p in counted}) == len(counted)


def test_a_search_depends_on_its_seed_alone():
    runs = []
    for seed in (0, 0, 1):
        one = searched(seed)
        one.beam(4, 2)
        one.greedy(5)
        runs.append(list(one.found.points.items()))
    assert runs[0] == runs[1] != runs[2]


def test_buckets_send_the_logarithm_of_their_size():
    one = searched()
    for size in (1, 2, 3, 8, 64):
        some = list(one._some([(i,) for i in range(size)]))
        assert len(some) == len(set(some)) == max(1, round(np.log2(size)))


def test_deeper_hashes_tell_more_states_apart():
    one = searched()
    keys = [tuple(point[n] for n in one.names) for point in SPACE]
    counts = [len({one._hash(key, depth) for key in keys}) for depth in range(8)]
    assert counts[0] == 1
    assert counts[1] == len(SPACE.parameters["walk"])
    assert counts == sorted(counts)
    assert counts[7] == len(SPACE)


def test_hashes_that_did_badly_are_put_back():
    one = searched(judge=lambda p: 10.0 if p["walk"] == "vector" else 1.0)
    one.beam(8, 1)
    assert one._warnings
    assert all("vector" in key for key in one._warnings)


def test_what_is_frozen_or_of_no_use_is_not_chosen():
    frozen = searched(frozen={"walk": "trees", "block": 64})
    frozen.beam(8, 2)
    assert {
        (p["walk"], p["block"]) for p in map(frozen.point, frozen.found.points)
    } == {("trees", 64)}
    useless = searched(judge=lambda p: float("inf"))
    assert useless.beam(4, 2) is None


def test_points_without_completion_are_left():
    space = ScheduleSpace(
        {"block": [1, 2, 3], "other": [1, 2]}, lambda p, s: Schedule()
    ).where(lambda block, other: block == 2 and other == 1)
    one = LearnedSearch(space, lambda ps: [1.0] * len(ps), np.random.default_rng(0))
    one.beam(2, 1)
    assert [one.point(k) for k in one.found.points] == [{"block": 2, "other": 1}]


# --------------------------------------------------------------------- modes


def test_one_shot_takes_what_should_beat_the_default_and_measures_nothing():
    machine = FakeMachine(FOREST, lambda s, n: 1e-5)
    clear = search(Learned("one-shot", samples=8, model=Model()), machine)
    assert ", 24)" in repr(clear.table[BATCH])
    assert clear.trials == () and not machine.built
    assert clear.notes == ("schedules are as predicted: nothing was measured",)
    same = Model(lambda matrix: np.zeros(len(matrix)))
    for model in (same, Model(margin=1e9)):
        kept = search(Learned("one-shot", samples=8, model=model))
        assert kept.table == {BATCH: DEFAULT}


def test_one_shot_takes_the_first_that_is_legal():
    class Refuses(FakeMachine):
        def lower(self, schedule):
            if ", 24)" in repr(schedule):
                raise ScheduleError("not here")
            return super().lower(schedule)

    machine = Refuses(FOREST, lambda s, n: 1e-5)
    space = SPACE.with_values(walk=["rows"], block=[0], hops=["checked"])
    found = search(Learned("one-shot", model=Model()), machine, space=space)
    assert ", 24)" not in repr(found.table[BATCH])


def test_large_spaces_are_sampled_and_small_ones_scored_whole():
    for strategy in (
        Learned("top-5", model=Model()),
        Learned("top-5", samples=8, outright=0, model=Model()),
    ):
        found = proposed(search(strategy))
        assert found[0].candidate.params["in_flight"] == 24


def test_spaces_of_more_points_than_are_scored_are_searched(monkeypatch):
    beams = []
    beam = LearnedSearch.beam

    def counted(self, *args):
        beams.append(self.space.name)
        return beam(self, *args)

    monkeypatch.setattr(LearnedSearch, "beam", counted)
    strategy = Learned("top-5", samples=4, model=Model())
    search(strategy, space=ScheduleSpace.cpu())
    assert beams == []  # 6,257 points
    large = SPACE.with_parameter("name", range(9), lambda schedule, i: schedule)
    assert large.size > strategy.outright
    assert proposed(search(strategy, space=large))
    assert beams == ["cpu"]


def test_top_five_measures_five_of_more_than_one_kind():
    found = proposed(search(Learned("top-5", samples=8, model=Model())))
    assert len(found) == 5
    assert len({t.candidate.params.get("walk") for t in found}) > 1


def test_autotune_learns_that_its_model_is_wrong():
    def seconds(schedule, n_rows):
        return 1e-6 if "bitsliced" in repr(schedule) else 1e-5

    def wrong(matrix):  # bit logic is thought to be slow
        return column(matrix, "layout_bitsliced") * 3.0

    machine = FakeMachine(FOREST, seconds)
    result = search(Learned(samples=8, iterations=4, model=Model(wrong)), machine)
    assert "bitsliced" in repr(result.table[BATCH])
    first = proposed(result)
    schedules = [t.schedule for t in first]
    assert len(set(schedules)) == len(schedules)
    assert not any("bitsliced" in repr(s) for s in schedules[:7])
    assert any("bitsliced" in repr(s) for s in schedules[8:16])


def test_the_default_is_never_lost():
    slow = FakeMachine(FOREST, lambda s, n: 1e-6 if s == DEFAULT else 1e-5)
    for mode in ("top-5", "autotune"):
        result = search(Learned(mode, samples=8, iterations=2, model=Model()), slow)
        assert result.table == {BATCH: DEFAULT}


def test_the_same_seed_proposes_the_same():
    runs = [
        [
            t.schedule
            for t in search(Learned(samples=8, iterations=2, model=Model())).trials
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_spaces_of_users_and_gpus_are_searched_as_well():
    given = ScheduleSpace.of([BEST, Schedule()])
    found = proposed(
        search(Learned(samples=8, iterations=3, model=Model()), space=given)
    )
    assert {t.schedule for t in found} >= {BEST, Schedule()}
    target = Target.cuda()
    problem = Problem(
        FOREST,
        SHAPE,
        target,
        "exact",
        BATCH,
        64,
        1,
        ScheduleSpace.gpu(),
        np.random.default_rng(0),
        Schedule(),
    )
    rounds = Learned(samples=2, beam=4, passes=1).rounds(problem)
    candidates = next(rounds).candidates
    assert candidates
    assert all(c.schedule.kind == "gpu" for c in candidates)


def test_strategies_by_name_include_it_and_modes_are_checked():
    result = Tuner("learned", SPACE, measurer=FakeMachine(FOREST, lambda s, n: 1e-5))
    assert result.tune(FOREST, target=TARGET, ranges={BATCH: 64}, budget=1.0)
    with pytest.raises(InvalidInputError, match="one-shot"):
        Learned("twice")
    with pytest.raises(InvalidInputError, match="samples"):
        Learned(samples=0)


# -------------------------------------------------------------- groups of trees


def test_groups_are_of_like_depth_and_cover_all_trees():
    forest = drawn(40, 7)
    groups = depth_groups(forest)
    assert [g.start for g in groups] == [0, *[g.stop for g in groups[:-1]]]
    assert groups[-1].stop == forest.n_trees
    assert sum(g.cost for g in groups) == pytest.approx(1.0)
    kept = costliest(groups)
    assert len(kept) == max(1, round(log(len(groups), 2)))
    worst = max(range(len(groups)), key=lambda i: groups[i].cost)
    assert worst in kept


def test_groups_with_hops_of_their_own_predict_the_same():
    forest = drawn(24, 6)
    groups = depth_groups(forest)
    space = grouped_space(ScheduleSpace.cpu(threads=False), groups)
    names = group_names(groups)
    base = next(
        p
        for p in ScheduleSpace.cpu(threads=False)
        if (p["walk"], p["block"], p["hops"]) == ("rows", 16, "checked")
    )
    point = {**base, **{n: ("peel", "unroll")[i % 2] for i, n in enumerate(names)}}
    assert point in space
    assert {**point, "hops": "peel"} not in space
    schedule = space.schedule(point, forest)
    loops = schedule.loop_nest(forest)
    while loops.loops[0].root == "batch":
        (around,) = loops.loops
        loops = replace(loops, loops=around.body)
    assert [loop.trip_count for loop in loops.loops] == [
        group.stop - group.start for group in groups
    ]
    rows = np.random.default_rng(0).standard_normal((33, forest.n_features))
    rows = rows.astype(forest.input_dtype)
    found = compile_forest(forest, schedule, "cpu").predict_raw(rows)
    assert np.array_equal(found.reshape(33, -1), reference_raw(forest, rows))


def test_groups_are_searched_with_the_cheap_ones_frozen():
    def likes_splits(matrix):
        rows = column(matrix, "rows_innermost") * column(matrix, "layout_sparse")
        return -rows - 0.1 * column(matrix, "splits")

    strategy = Learned("top-5", groups=True, model=Model(likes_splits))
    machine = FakeMachine(FOREST, lambda s, n: 1e-5)
    split = [t for t in proposed(search(strategy, machine)) if "split" in repr(t)]
    frozen = len(depth_groups(FOREST)) - len(costliest(depth_groups(FOREST)))
    for trial in split:
        hops = [v for k, v in trial.candidate.params.items() if k.startswith("hops_")]
        assert len(hops) == len(depth_groups(FOREST)) >= frozen


# -------------------------------------------------------------- the cost model


def little_model(facts=None):
    """Return a model of one tree over one feature."""
    from skforge.tuning.cost.cost_model import _forest_of

    arrays = {
        "tree_offset": np.array([0, 3]),
        "predicate": np.array([0, -1, -1]),
        "left": np.array([1, -1, -1]),
        "right": np.array([2, -1, -1]),
        "leaf": np.array([-1, 0, 1]),
        "leaf_value": np.array([[0.5], [-0.5]]),
        "feature": np.array([NAMES.index("walks_in_flight")]),
        "comparison": np.array([1], np.uint8),
        "threshold": np.array([8.0]),
        "missing": np.array([0], np.uint8),
        "missing_left": np.array([True]),
    }
    return CostModel(_forest_of(arrays), facts)


def test_a_model_is_arrays_and_comes_back_the_same(tmp_path):
    setting = Setting(ForestFacts.of(FOREST, TARGET), TARGET, 64)
    model = little_model({"margin": 1.25})
    schedules = [Schedule(), BEST]
    few, many = model.seconds(setting, schedules)
    model.save(tmp_path / "one.npz")
    again = CostModel.load(tmp_path / "one.npz")
    assert again.facts == {"margin": 1.25}
    assert np.array_equal(again.seconds(setting, schedules), [few, many])
    assert len(again.seconds(setting, [])) == 0


def test_files_that_are_no_model_are_refused(tmp_path):
    bad = tmp_path / "bad.npz"
    np.savez(bad, names=np.array(NAMES))
    with pytest.raises(InvalidModelError, match="no cost model"):
        CostModel.load(bad)
    bad.write_bytes(b"nothing")
    with pytest.raises(InvalidModelError, match="no cost model"):
        CostModel.load(bad)
    with pytest.raises(InvalidModelError, match=r"no cost model: .*No such file"):
        CostModel.load(tmp_path / "none.npz")
    np.save(tmp_path / "array.npy", np.arange(3))
    with pytest.raises(InvalidModelError, match="no cost model"):
        CostModel.load(tmp_path / "array.npy")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidModelError, match="no cost model: it is no regular file"):
        CostModel.load(tmp_path / "pipe")
    with pytest.raises(InvalidModelError, match="other features"):
        CostModel(little_model().forest, names=["one"])


def with_left(path, payload):
    """Replace an array of a cost model's file."""
    little_model().save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["left.npy"] = payload
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("header", ["(" * 3000, "{'descr': '<f8', 'shape': (3,"])
def test_headers_of_a_cost_model_are_not_evaluated(header, tmp_path):
    path = tmp_path / "one.npz"
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    with_left(path, head + header.encode() + b"\0" * 24)
    with pytest.raises(InvalidModelError) as error:
        CostModel.load(path)
    assert str(error.value) == (
        f"{path} holds no cost model: its array 'left' is damaged"
    )


def test_a_cost_model_is_not_unpacked_beyond_its_bounds(tmp_path):
    path = tmp_path / "one.npz"
    with_left(path, b"\0" * ((64 << 20) + 1))
    with pytest.raises(InvalidModelError) as error:
        CostModel.load(path)
    assert str(error.value) == (
        f"{path} holds no cost model: its array 'left' is larger than any model's"
    )


def test_the_shipped_model_is_small_and_predicts():
    assert SHIPPED.stat().st_size < 300_000
    model = CostModel.shipped()
    assert model is not None
    assert model.facts["margin"] >= 1
    setting = Setting(ForestFacts.of(FOREST, TARGET), TARGET, 512)
    schedules = [SPACE.schedule(p, SHAPE) for p in SPACE.sample(100, random_state=0)]
    seconds = model.seconds(setting, schedules)
    assert (seconds > 1e-8).all()
    assert (seconds < 1e-1).all()
    assert seconds.std() > 0
