"""The profile of this machine: how it is measured beside other work, kept and renewed.

The machine is a fake: kernels move its clocks on, and a test says by how much.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from skforge.cli import doctor as cli_doctor
from skforge.cli.main import app
from skforge.compiler.cost.profile import GENERIC, MachineProfile
from skforge.compiler.target import Target
from skforge.engine import machine
from skforge.runtime import object_cache

TARGET = replace(Target.x86_64("v3"), cpu="unheard-of", n_cores=2)

#: The numbers of the fake machine, half as fast as the modelled one.
TRUE = {name: 2 * value for name, value in asdict(GENERIC[256]).items()}

#: Seconds of a call besides its kernel.
CALL = 1e-6


class Machine:
    """Clocks that kernels move on; ``disturb`` changes what a run of a kernel takes."""

    def __init__(self) -> None:
        self.cpu, self.wall, self.runs = 0.0, 1e9, 0
        self.turn = Counter[str]()  # runs of each kernel
        self.step = 1e-7  # of the clock of CPU time
        self.load: float | None = 0.5
        #: From a run's number, the name of its work and its seconds to seconds.
        self.disturb: Callable[[int, str, float], float] = lambda run, name, s: s
        #: From a run's number to the seconds that another process has the core.
        self.preempt: Callable[[int], float] = lambda run: 0.0
        self.others = 0.0  # seconds of other processes for each second of this one

    def spend(self, seconds: float) -> None:
        self.cpu += seconds
        self.wall += seconds * (1 + self.others)

    def thread_time(self) -> float:
        self.spend(1e-7)
        return self.cpu // self.step * self.step

    def perf_counter(self) -> float:
        self.spend(1e-7)
        return self.wall

    def works(self, target: Target, clock: Callable[[], float]) -> machine.Works:
        return {name: (self.work(name, clock), 1, 1) for name in TRUE}

    def work(self, name: str, clock: Callable[[], float]) -> machine.Microkernel:
        def seconds(turns: int) -> float:
            self.runs += 1
            self.turn[name] += 1
            begin = clock()
            self.spend(CALL + self.disturb(self.runs, name, turns * TRUE[name] * 1e-9))
            self.wall += self.preempt(self.runs)
            return clock() - begin

        return seconds


@pytest.fixture
def fake(monkeypatch, tmp_path) -> Machine:
    """A fake machine as this one, with a cache of its own."""
    made = Machine()
    clocks = SimpleNamespace(thread_time=made.thread_time, time=lambda: made.wall)
    clocks.perf_counter = made.perf_counter
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Target, "host", classmethod(lambda cls: TARGET))
    monkeypatch.setattr(machine, "time", clocks)
    monkeypatch.setattr(machine, "load_average", lambda: made.load)
    monkeypatch.setattr(machine, "SOON", 600.0)
    monkeypatch.setattr(machine, "time", clocks)
    monkeypatch.setattr(machine, "CLOCKS", (made.thread_time, made.perf_counter))
    monkeypatch.setattr(machine, "works_of", made.works)
    monkeypatch.setattr(machine, "USED", {})
    return made


def another_process() -> machine.Measured | None:
    """Forget what this process knows; return what it then finds."""
    machine.USED.clear()
    return machine.from_cache(TARGET)


def ratios(profile: MachineProfile) -> dict[str, float]:
    return {name: value / TRUE[name] for name, value in asdict(profile).items()}


def assert_true(profile: MachineProfile, most: float = 1.05) -> None:
    assert all(1 / most < ratio < most for ratio in ratios(profile).values()), ratios(
        profile
    )


# ------------------------------------------------------------------- samples


def test_a_quiet_machine_is_measured_once(fake):
    profile = machine.machine_profile(TARGET)
    assert_true(profile)
    assert fake.runs < 400 and fake.cpu < 0.05
    kept = another_process()
    assert kept.profile == profile and kept.doubts == () and kept.load == 0.5
    assert kept.when == pytest.approx(fake.wall) and kept.share > 0.99
    runs = fake.runs
    assert machine.machine_profile(TARGET) == profile and fake.runs == runs


#: What a run of a kernel takes, and whether no doubt is left.
DISTURBED = {
    # does not shorten the samples
    "an interruption of the first probe": (
        lambda fake: lambda run, name, s: s + 5e-3 * (fake.turn[name] == 1), True),
    # a host that ran another guest may take that time off the wrong sample
    "one sample that is too short": (
        lambda fake: lambda run, name, s: s * (0.6 if fake.turn[name] == 10 else 1),
        True),
    # of other processes, in CPU time
    **{f"every {n}. sample": (
        lambda fake, n=n: lambda run, name, s: s + 2e-4 * (run % n == 0), False)
       for n in (2, 3, 7)},
}  # fmt: skip


@pytest.mark.parametrize("case", DISTURBED)
def test_interruptions_do_not_count(fake, case):
    disturb, sure = DISTURBED[case]
    fake.disturb = disturb(fake)
    assert_true(machine.machine_profile(TARGET))
    kept = another_process()
    assert kept is not None and not (sure and kept.doubts)


@pytest.mark.parametrize("every", [2, 3, 7])
def test_a_coarse_clock_is_not_used_and_that_of_the_wall_has_other_processes(
    fake, every
):
    fake.step = 1e-2
    fake.preempt = lambda run: 3e-3 * (run % every == 0)
    assert_true(machine.machine_profile(TARGET))
    assert another_process() is not None


def test_without_a_fine_clock_nothing_is_measured(fake, monkeypatch):
    fake.step = 0.01
    monkeypatch.setattr(machine, "CLOCKS", (fake.thread_time,))
    assert machine.machine_profile(TARGET) == GENERIC[256]
    assert another_process() is None and fake.runs == 0


# ------------------------------------------------------------------- doubts


def growing(fake):
    """Let each run of a kernel take longer than those before."""
    begin = fake.turn["mux"]

    def disturb(run, name, seconds):
        return seconds + (name == "mux") * 1e-4 * 1.5 ** (fake.turn["mux"] - begin)

    return disturb


def test_a_profile_whose_samples_disagree_is_not_kept(fake):
    fake.disturb = growing(fake)
    profile = machine.machine_profile(TARGET)
    assert profile.mux == GENERIC[256].mux
    assert_true(replace(profile, mux=TRUE["mux"]))
    assert machine.USED[TARGET].doubts == ("samples of mux disagree",)
    assert machine.from_cache(TARGET) is None
    # This process measures again after some minutes, another one at once.
    fake.disturb, runs = (lambda run, name, s: s), fake.runs
    assert machine.machine_profile(TARGET) == profile and fake.runs == runs
    fake.wall += machine.SOON
    assert_true(machine.machine_profile(TARGET))
    assert another_process().doubts == ()


def test_what_disagrees_later_has_the_number_kept_before(fake):
    before = machine.machine_profile(TARGET)
    fake.wall += machine.LATER
    fake.disturb = growing(fake)
    assert machine.machine_profile(TARGET).mux == before.mux
    assert another_process().when < fake.wall - machine.LATER / 2


def test_a_number_far_from_the_modelled_one_is_measured_twice(fake):
    fake.disturb = lambda run, name, s: s * (2 if name == "gather" else 1)
    profile = machine.machine_profile(TARGET)
    assert_true(replace(profile, gather=TRUE["gather"]))
    assert ratios(profile)["gather"] == pytest.approx(2, rel=0.05)
    assert another_process().doubts == ("gather is 4.1 times the modelled number",)
    # A later measurement that agrees removes the doubt, and the number stays.
    fake.wall += machine.SOON
    assert machine.machine_profile(TARGET) == profile
    assert another_process().doubts == ()


def test_a_number_that_was_far_once_is_not_kept(fake, monkeypatch):
    measured, least_times = [], machine.least_times

    def counted(works):
        measured.append(set(works))
        return least_times(works)

    monkeypatch.setattr(machine, "least_times", counted)
    fake.disturb = lambda run, name, s: (
        s * (200 if name == "mux" and len(measured) == 1 else 1)
    )
    profile = machine.machine_profile(TARGET)
    assert measured == [set(TRUE), {"mux"}]
    assert_true(replace(profile, mux=TRUE["mux"]))
    assert profile.mux == GENERIC[256].mux
    assert another_process() is None
    assert_true(machine.machine_profile(TARGET))
    assert another_process().doubts == ()


@pytest.mark.parametrize(
    "change,doubt",
    [
        ({"others": 2.0}, "other work had 67% of the core"),
        ({"load": 2.5}, "the load average was 2.5 on 2 cores"),
    ],
    ids=["share", "load"],
)
def test_a_profile_beside_other_work_is_measured_again(fake, change, doubt):
    fake.disturb = lambda run, name, s: s * 1.4
    vars(fake).update(change)
    slow = machine.machine_profile(TARGET)
    assert another_process().doubts == (doubt,)
    assert machine.machine_profile(TARGET) == slow  # not yet
    fake.wall += machine.SOON
    fake.others, fake.load, fake.disturb = 0.0, 0.5, lambda run, name, s: s
    assert_true(machine.machine_profile(TARGET))
    assert another_process().doubts == ()


def test_of_two_doubtful_measurements_the_lesser_numbers_count(fake):
    fake.load = 9.0
    fake.disturb = lambda run, name, s: s * (1.6 if name < "m" else 1.0)
    machine.machine_profile(TARGET)
    fake.wall += machine.SOON
    fake.disturb = lambda run, name, s: s * (1.6 if name > "m" else 1.0)
    assert_true(machine.machine_profile(TARGET))
    assert another_process().doubts  # they disagreed
    fake.wall += machine.SOON
    fake.disturb = lambda run, name, s: s
    assert_true(machine.machine_profile(TARGET))
    assert another_process().doubts == ()


def test_noise_does_not_change_the_ratios_of_numbers():
    """A faster CPU of the kind, and neighbours that make memory four times as slow."""
    common = asdict(GENERIC[256])
    noise = np.random.default_rng(0).uniform(0.85, 1.15, len(common))
    numbers = {n: 0.8 * v * x for (n, v), x in zip(common.items(), noise, strict=True)}
    numbers["wait_l3"] *= 4
    found = asdict(MachineProfile(**numbers).settled(TARGET))
    speeds = [found[name] / common[name] for name in found]
    assert speeds == pytest.approx([speeds[0]] * len(speeds))
    assert speeds[0] == pytest.approx(0.8, rel=0.15)


def test_what_differs_from_the_modelled_cpu_stays():
    numbers = asdict(GENERIC[256]) | {"gather": 2.0 * GENERIC[256].gather}
    assert asdict(MachineProfile(**numbers).settled(TARGET)) == pytest.approx(numbers)


def test_a_sound_profile_is_measured_again_a_month_later(fake):
    machine.machine_profile(TARGET)
    fake.disturb = lambda run, name, s: s * 1.4
    fake.wall += machine.LATER - 60
    assert_true(machine.machine_profile(TARGET))
    fake.wall += 61
    assert ratios(machine.machine_profile(TARGET))["mux"] > 1.3


def test_a_profile_that_another_process_has_kept_meanwhile_is_used(fake, monkeypatch):
    def measured(target):
        monkeypatch.setattr(machine, "measure", lambda target: TRUE)
        machine.renewed(TARGET)
        return {name: 1.5 * value for name, value in TRUE.items()}

    monkeypatch.setattr(machine, "measure", measured)
    assert machine.machine_profile(TARGET) == MachineProfile(**TRUE)


# ------------------------------------------------------------------- files


def test_profiles_of_older_releases_are_measured_anew(fake):
    """They had no more than the numbers, in a file of another name."""
    folder = Path(object_cache.opened("machines", create=True))
    old = {**TRUE, "mux": 115.6}
    (folder / f"{'0' * 32}.json").write_text(json.dumps(old))
    object_cache.write(machine._key(TARGET), "machines", [json.dumps(old).encode()])
    assert machine.known_profile(TARGET) == GENERIC[256]
    assert_true(machine.machine_profile(TARGET))


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"profile": {"mux": 1}}'])
def test_a_damaged_file_is_measured_anew(fake, damage):
    profile = machine.machine_profile(TARGET)
    object_cache.write(machine._key(TARGET), "machines", [damage])
    assert another_process() is None
    assert_true(machine.machine_profile(TARGET))
    machine.kept_in(TARGET).write_bytes(damage)
    assert another_process() is None
    assert machine.machine_profile(TARGET).near(profile)


def test_a_file_from_the_future_is_measured_anew(fake):
    machine.machine_profile(TARGET)
    machine.USED.clear()
    fake.wall -= 1e6
    runs = fake.runs
    assert_true(machine.machine_profile(TARGET))
    assert fake.runs > runs


def test_without_a_cache_a_common_cpu_stands_in(fake, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    assert machine.machine_profile(TARGET) == MachineProfile.of(TARGET)
    assert machine.kept_in(TARGET) is None and fake.runs == 0


def test_other_machines_are_not_measured(fake):
    """Code for them may be made anywhere."""
    v3 = Target.x86_64("v3")
    assert machine.machine_profile(v3) == MachineProfile.of(v3)
    assert MachineProfile.is_stored(replace(Target.x86_64("v4"), cpu="emeraldrapids"))
    assert fake.runs == 0


def test_windows_has_no_load_average(monkeypatch):
    monkeypatch.delattr("os.getloadavg")
    assert machine.load_average() is None and not machine.is_busy(TARGET)


# ------------------------------------------------------------------- doctor


@pytest.fixture
def doctor(fake, monkeypatch, capsys) -> Callable[..., dict[str, list[str]]]:
    """Return ``skforge doctor``; it returns the cells that it prints, by the first."""
    monkeypatch.setenv("COLUMNS", "400")
    utc = SimpleNamespace(strftime=time.strftime, localtime=time.gmtime)
    monkeypatch.setattr(cli_doctor, "time", utc)

    def run(*options: str) -> dict[str, list[str]]:
        with pytest.raises(SystemExit) as stopped:
            app(["doctor", *options], prog_name="skforge")
        assert not stopped.value.code
        lines = capsys.readouterr().out.splitlines()
        cells = [re.split(r"  +", line.strip()) for line in lines]
        return {first: others for first, *others in cells}

    return run


def test_doctor_shows_when_and_under_which_load_the_profile_was_measured(doctor, fake):
    fake.others = 0.2
    shown = doctor()
    kept = another_process()
    assert kept.profile.scalar == pytest.approx(0.18, rel=0.05)
    assert shown["profile"] == [
        f"measured on this machine, in {machine.kept_in(TARGET)}"
    ]
    load = ["2001-09-09 01:46, with 83% of a core, load average 0.5"]
    assert shown["measured"] == load and "doubtful" not in shown
    assert shown["one simple instruction"] == ["0.18"]
    runs = fake.runs
    assert doctor() == shown and fake.runs == runs


def test_doctor_shows_why_a_profile_is_doubtful(doctor, fake):
    fake.load = 7.0
    fake.disturb = lambda run, name, s: s * (2 if name == "gather" else 1)
    assert doctor()["doubtful"] == [
        "gather is 4.1 times the modelled number; the load average was 7.0 on 2 cores; "
        "measured again from 2001-09-09 01:56 on"
    ]


def test_doctor_measures_again_and_keeps_it(doctor, fake):
    fake.disturb = lambda run, name, s: s * 1.2  # would count as equal
    doctor()
    fake.disturb = lambda run, name, s: s
    fake.wall += 120
    shown = doctor("--measure")
    assert shown["measured"][0].startswith("2001-09-09 01:48")
    assert shown["one simple instruction"] == ["0.22", "0.18"]
    assert_true(another_process().profile)
    fake.disturb = growing(fake)
    shown = doctor("--measure")
    assert "samples of mux disagree; measured again" in shown["doubtful"][0]
    assert_true(another_process().profile)


def test_doctor_measures_a_cpu_that_skforge_knows_without_using_it(
    doctor, fake, monkeypatch
):
    known = replace(TARGET, cpu="emeraldrapids")
    monkeypatch.setattr(Target, "host", classmethod(lambda cls: known))
    shown = doctor("--measure")
    assert shown["profile"] == ["stored with skforge, measured on this kind of CPU"]
    assert shown["one simple instruction"] == ["0.09", "0.18"]
    assert machine.machine_profile(known) == GENERIC[256]


def test_doctor_without_a_cache_keeps_nothing(doctor, fake, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    shown = doctor("--measure")
    assert shown["profile"] == [
        "that of a common CPU, as this one is unknown and there is no cache"
    ]
    assert shown["one simple instruction"] == ["0.09", "0.18"]
    assert machine.machine_profile(TARGET) == GENERIC[256]


def test_a_walk_meets_its_lines_once():
    data = machine._cycle(64, 8, np.random.default_rng(0))
    place, met = 0, []
    for _ in range(8):
        met.append(place)
        place = int(data[place])
    assert place == 0 and len(set(met)) == 8
    assert all(at % (machine.LINE // 8) == 0 for at in met)


def test_work_without_an_instruction_is_as_other_work():
    v2 = Target.x86_64("v2")
    few = {"scalar": 1.0, "compare": 3.0}
    made = machine.without_kernels(few, v2)
    assert made["gather"] == v2.lanes(64) and set(made) <= {*few, "gather", "permute"}
    assert machine.without_kernels({"mux": 1.0}, v2) == {"mux": 1.0}
    assert machine.without_kernels(few, TARGET) == few
