"""Code that is found in the cache before it is written, and what finds it."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from skforge import Schedule, compile_forest
from skforge.compiler.target import Target
from skforge.engine.cpu import code, jit, programs
from skforge.engine.entry import entry as entries
from skforge.engine.entry import mappings, routines
from skforge.runtime import facts, object_cache
from tests.noted import calls_of

TEXT = "define i64 @k() {\n  ret i64 NUMBER\n}"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder of objects of an empty cache."""
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    monkeypatch.delenv("SKFORGE_VERIFY", raising=False)
    monkeypatch.setattr(programs, "sources", lambda: "these")
    return tmp_path / "cache" / "objects"


def answer(*of, number=1):
    """Return what a program returns, and whether it was written."""
    made = []

    def write():
        made.append(1)
        return [TEXT.replace("NUMBER", str(number))]

    module = programs.program(of or ("a",), write, Target.host())
    function = ctypes.CFUNCTYPE(ctypes.c_int64)(module.address("k"))
    return function(), bool(made)


def test_a_program_is_written_once(folder):
    assert answer() == (1, True)
    assert answer(number=2) == (1, False)
    assert len([*folder.iterdir()]) == 1


@pytest.mark.parametrize("what", ["facts", "sources", "llvm", "target", "verified"])
def test_what_a_program_depends_on_is_in_its_key(what, monkeypatch):
    answer()
    of = ("a",)
    if what == "facts":
        of = ("b",)
    elif what == "sources":
        monkeypatch.setattr(programs, "sources", lambda: "edited")
    elif what == "llvm":
        monkeypatch.setattr(code, "llvm_version", lambda: "another")
    elif what == "target":
        monkeypatch.setattr(code, "machine_options", lambda target: {"opt": 0})
        monkeypatch.setattr(jit, "machine_options", lambda target: {"opt": 0})
    else:
        monkeypatch.setenv("SKFORGE_VERIFY", "1")
    assert answer(*of, number=2) == (2, True)


@pytest.mark.parametrize("junk", [b"", b"k\n", b"k\njunk", b"\xff\n", b"other\nELF"])
def test_junk_under_a_right_digest_is_compiled_anew(folder, junk):
    answer()
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    object_cache.store(path.name, junk)
    assert answer() == (1, True)
    assert path.read_bytes() == whole


def module_of():
    X = np.arange(8.0, dtype=np.float32).reshape(-1, 1)
    module = compile_forest(DecisionTreeRegressor().fit(X, X[:, 0]), Schedule())
    module.compile_all()
    return module, X


def entry_written(monkeypatch):
    """Return whether an entry was written, and check its answers."""
    with monkeypatch.context() as patch:
        made = calls_of(patch, routines, "write")
        module, X = module_of()
        entry = module.entry("raw")
    assert (entry(X) == X[:, 0]).all()
    return bool(made)


def test_an_entry_is_found_by_its_kind_and_by_python_and_numpy(monkeypatch):
    assert entry_written(monkeypatch)
    assert not entry_written(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(entries.sys.implementation, "cache_tag", "cpython-999")
        assert entry_written(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(entries.np, "__version__", "99.0")
        assert entry_written(monkeypatch)
    assert not entry_written(monkeypatch)


def test_the_reader_of_mappings_is_found(monkeypatch):
    made = calls_of(monkeypatch, mappings, "_routines")
    for written in (True, False):
        made.clear()
        mappings._reader.cache_clear()
        rows = mappings.CompiledDictReader({"a": 0}, {}, 1).read([{"a": 2.0}, {"a": 3}])
        assert rows.tolist() == [[2.0], [3.0]]
        assert bool(made) == written


def test_cores_are_counted_as_joblib_does(monkeypatch):
    import joblib

    assert facts.cpu_count() == joblib.cpu_count()
    for asked in ("1", "999", "0"):
        monkeypatch.setenv("LOKY_MAX_CPU_COUNT", asked)
        assert facts.cpu_count() == joblib.cpu_count()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000"}, None),
        ({}, None),
    ],
)
def test_quotas_of_both_versions_of_cgroups(files, cores, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64), raising=False)
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    monkeypatch.setattr(facts.sys, "platform", "linux")
    assert facts.cpu_count(tmp_path) == (cores or 64)


def test_facts_of_a_cpu_leave_out_what_changes(tmp_path):
    file = tmp_path / "cpuinfo"
    text = "vendor_id\t: A\ncpu MHz\t\t: {}\nflags\t\t: fpu avx2\n\nvendor_id\t: B\n"
    file.write_text(text.format(1))
    found = facts.cpu_facts(file)
    assert found == "vendor_id\t: A\nflags\t\t: fpu avx2\n"
    file.write_text(text.format(2))
    assert facts.cpu_facts(file) == found
    assert facts.cpu_facts(tmp_path / "none") == ""
