"""The learned strategy: its search, modes and cost model, on machines that are none."""

from __future__ import annotations

import os

import numpy as np
import pytest

import skforge
from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.compiler.cost.shape import ForestShape, Setting
from skforge.compiler.defaults.cpu import candidates, default_schedules
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, InvalidModelError, ScheduleError
from skforge.schedule.schedule import Schedule
from skforge.tuning import CostModel, Learned, Problem, ScheduleSpace, Tuner
from skforge.tuning.search.learned import _spread
from tests.exactness.forests import drawn, forest_of, tree
from tests.tuning_tools import FakeMachine

FOREST = drawn(20, 4)
SHAPE = ForestShape.of(FOREST)
TARGET = Target.x86_64("v4")
SPACE = ScheduleSpace.cpu(threads=False)
GPU = ScheduleSpace.gpu().with_values(cache_trees=[False])
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
        self._log_row = log_row or in_flight

    def seconds(self, setting, schedules):
        facts = facts_of(schedules)
        log_row = self._log_row({name: facts[:, at] for name, at in PLACE.items()})
        return np.exp(log_row) * 1e-9 * setting.n_rows


def in_flight(facts):
    most = np.maximum(facts["rows_in_flight"], facts["trees_in_flight"])
    return -np.log(np.maximum(1.0, most))


def search(strategy, machine=None, **options):
    machine = machine or FakeMachine(FOREST, lambda s, n: 1e-5)
    options = {"ranges": {BATCH: 64}, "random_state": 0, "budget": 100.0, **options}
    space = options.pop("space", SPACE)
    return Tuner(strategy, space, measurer=machine).tune(
        FOREST, target=options.pop("target", TARGET), **options
    )


def proposed(result):
    return [t for t in result.trials if t.candidate.origin == "learned"]


# --------------------------------------------------------------------- modes


def test_one_shot_takes_what_should_beat_the_default_and_measures_nothing():
    machine = FakeMachine(FOREST, lambda s, n: 1e-5)
    clear = search(Learned("one-shot", model=Model()), machine)
    assert ", 24)" in repr(clear.table[BATCH])
    assert clear.trials == () and not machine.built
    assert clear.notes == (
        "the schedules are predictions of the cost model: nothing was measured",
    )
    same = Model(lambda facts: 0 * facts["codes"])
    for model in (same, Model(margin=1e9)):
        kept = search(Learned("one-shot", model=model))
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


def test_one_shot_does_not_take_what_spills():
    class Spills(FakeMachine):
        def check(self, plan):
            return "it spills" if plan.schedule == BEST else ""

    machine = Spills(FOREST, lambda s, n: 1e-5)
    space = SPACE.with_values(walk=["rows"], block=[0, 64], hops=["checked"])
    found = search(Learned("one-shot", model=Model()), space=space)
    assert found.table == {BATCH: BEST}
    found = search(Learned("one-shot", model=Model()), machine, space=space)
    (chosen,) = found.table.values()
    assert chosen not in (DEFAULT, BEST)


def test_sizes_that_were_not_drawn_are_found_beside_those_that_were():
    def cost(facts):  # 8 rows by 10 parts, 2 rows a thread
        rows, parts = facts["row_block"], facts["block_trees"]
        each = rows / np.maximum(1, facts["block_rows"])
        wanted = ((rows, 8), (each, 2), (parts, 10))
        return sum(abs(np.log2(np.maximum(x, 0.5) / y)) for x, y in wanted) + 1.0

    space = ScheduleSpace.gpu_full().with_values(deal=["parts"])
    machine = FakeMachine(FOREST, lambda s, n: 1e-5)
    strategy = Learned("top-5", outright=0, model=Model(cost))
    best = proposed(search(strategy, machine, target=Target.cuda(), space=space))[0]
    sizes = ("rows_per_block", "rows_per_thread", "tree_threads")
    assert [best.candidate.params[name] for name in sizes] == [8, 2, 10]


def test_large_spaces_are_sampled_and_small_ones_scored_whole(monkeypatch):
    sampled = []
    sample = ScheduleSpace.sample

    def counted(self, *args):
        sampled.append(self.name)
        return sample(self, *args)

    monkeypatch.setattr(ScheduleSpace, "sample", counted)
    found = proposed(search(Learned("top-5", model=Model())))
    assert found[0].candidate.params["in_flight"] == 24
    search(Learned("top-5", model=Model()), space=ScheduleSpace.cpu())
    assert sampled == []  # 6,282 points
    few = Learned("top-5", outright=0, model=Model())
    found = proposed(search(few))
    assert found[0].candidate.params["in_flight"] == 24
    assert {*sampled} == {"cpu"}


def test_what_is_drawn_of_a_large_space_is_as_good_as_its_best():
    large = SPACE.with_parameter("name", range(9), lambda schedule, i: schedule)
    strategy = Learned("top-5", model=Model())
    assert large.size > strategy.outright
    found = proposed(search(strategy, space=large))
    assert found[0].candidate.params["in_flight"] == 24
    again = proposed(search(strategy, space=large))
    assert [t.schedule for t in found] == [t.schedule for t in again]


def test_every_structure_of_a_large_space_is_drawn_before_one_is_drawn_twice():
    space = ScheduleSpace.gpu_full()
    points = list(_spread(space, np.random.default_rng(0)))
    drawn = {space.structure(point) for point in points}
    assert drawn == {space.structure(point) for point in space}
    assert len(points) == len({tuple(point.values()) for point in points}) <= 4096


def test_top_five_measures_five_of_more_than_one_kind():
    found = proposed(search(Learned("top-5", model=Model())))
    assert len(found) == 5
    assert len({t.candidate.params.get("walk") for t in found}) > 1


def test_autotune_learns_that_its_model_is_wrong():
    def seconds(schedule, n_rows):
        return 1e-6 if "bitsliced" in repr(schedule) else 1e-5

    def wrong(facts):  # bit logic is thought to be slow
        return (facts["layout"] == LAYOUTS.index("bitsliced")) * 3.0

    machine = FakeMachine(FOREST, seconds)
    result = search(Learned(iterations=4, model=Model(wrong)), machine)
    assert "bitsliced" in repr(result.table[BATCH])
    first = proposed(result)
    schedules = [t.schedule for t in first]
    assert len(set(schedules)) == len(schedules)
    assert not any("bitsliced" in repr(s) for s in schedules[:7])
    assert any("bitsliced" in repr(s) for s in schedules[8:16])


def test_the_default_is_never_lost():
    slow = FakeMachine(FOREST, lambda s, n: 1e-6 if s == DEFAULT else 1e-5)
    for mode in ("top-5", "autotune"):
        result = search(Learned(mode, iterations=2, model=Model()), slow)
        assert result.table == {BATCH: DEFAULT}


def test_the_same_seed_proposes_the_same():
    runs = [
        [t.schedule for t in search(Learned(iterations=2, model=Model())).trials]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_spaces_of_users_and_gpus_are_searched_as_well():
    given = ScheduleSpace.of([BEST, Schedule()])
    found = proposed(search(Learned(iterations=3, model=Model()), space=given))
    assert {t.schedule for t in found} >= {BEST, Schedule()}
    target = Target.cuda()
    problem = Problem(
        FOREST, SHAPE, target, "exact", BATCH, 64, 1, ScheduleSpace.gpu(),
        np.random.default_rng(0), Schedule(),
    )  # fmt: skip
    rounds = Learned().rounds(problem)
    candidates = next(rounds).candidates
    assert candidates
    assert all(c.schedule.kind == "gpu" for c in candidates)


def test_strategies_by_name_include_it_and_modes_are_checked():
    result = Tuner("learned", SPACE, measurer=FakeMachine(FOREST, lambda s, n: 1e-5))
    assert result.tune(FOREST, target=TARGET, ranges={BATCH: 64}, budget=1.0)
    with pytest.raises(InvalidInputError, match="one-shot"):
        Learned("twice")
    with pytest.raises(InvalidInputError, match="iterations"):
        Learned(iterations=0)


# -------------------------------------------------------------- the cost model


def little_model(facts=None):
    """Return a model of one forest over two features."""
    one = forest_of([tree("full", 2, np.random.default_rng(0))], n_features=2)
    return CostModel(one, facts, ["walks_in_flight", "num_rows"])


def test_files_that_are_no_model_are_refused(tmp_path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"nothing")
    with pytest.raises(InvalidModelError, match="bad cannot be loaded"):
        CostModel.load(bad)
    with pytest.raises(InvalidModelError, match="none cannot be read"):
        CostModel.load(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidModelError, match="pipe is not a regular file"):
        CostModel.load(tmp_path / "pipe")
    skforge.save(FOREST, tmp_path / "forest.skforge")
    with pytest.raises(InvalidModelError, match="the entry 'facts' of its manifest"):
        CostModel.load(tmp_path / "forest.skforge")
    forest, target = little_model().forest, Target.cuda("sm_90")
    with pytest.raises(InvalidModelError, match="other features"):
        CostModel(forest, names=["one"])
    setting, points = Setting(SHAPE, target, 64), GPU.sample(1, random_state=0)
    schedules = [GPU.schedule(point, SHAPE) for point in points]
    with pytest.raises(InvalidModelError, match="other features"):
        CostModel(forest, names=["one", "two"]).seconds(setting, schedules)


def test_cpus_have_no_model_and_begin_with_the_estimate():
    assert CostModel.shipped() is None
    assert CostModel.shipped(TARGET) is None
    estimate = CostEstimate(FOREST, TARGET)
    legal = [s for s in candidates(FOREST, TARGET) if s != DEFAULT]
    found = proposed(search(Learned("top-5"), space=ScheduleSpace.of(legal)))
    times = {s: float(estimate.seconds(s, 64)) for s in legal}
    best = [s for s in sorted(legal, key=times.__getitem__)]
    assert found[0].schedule == best[0]
    result = search(Learned("one-shot"))
    assert result.table and result.trials == ()
    with pytest.raises(InvalidInputError, match="cost models are for GPUs"):
        search(Learned(model=CostModel.shipped(Target.cuda("sm_90"))))


def first_round(strategy, target, space):
    """Return the schedules that a strategy proposes first for 64 rows."""
    random, default = np.random.default_rng(0), DEFAULT
    how = (FOREST, SHAPE, target, "exact", BATCH, 64, 1, space, random, default)
    return [c.schedule for c in next(strategy.rounds(Problem(*how))).candidates]


def test_what_no_estimate_knows_is_taken_to_be_as_fast_as_the_default():
    toy = Schedule().represent("toy")
    space = ScheduleSpace.of([Schedule(), toy])
    assert first_round(Learned("top-5"), TARGET, space) == [toy, Schedule()]


@pytest.mark.parametrize("target", [TARGET, Target.cuda(), Target.cuda("sm_89")])
def test_a_space_without_a_schedule_has_no_proposals(target):
    space = ScheduleSpace.of(["nothing"])
    for outright in (0, 10_000):
        assert first_round(Learned("top-5", outright=outright), target, space) == []
