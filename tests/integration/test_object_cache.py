"""The cache of machine code: used when it is right, and never missed when it is not."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import skforge
from skforge import CompiledForest, Schedule, compile_forest, load_forest
from skforge import config as _config
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.target import Target
from skforge.engine import machine, targets
from skforge.engine.cpu import code
from skforge.engine.cpu import jit as llvm_jit
from skforge.engine.cpu.jit import compile_functions
from skforge.runtime import object_cache
from skforge.tuning import Tuner
from tests.noted import calls_of
from tests.plain import plain
from tests.programs import run_python
from tests.run_kernel import call

ADD = """
define void @add(ptr %slots, ptr %pfor, i64 %threads) {
  %out = load ptr, ptr %slots
  %old = load i64, ptr %out
  %new = add i64 %old, NUMBER
  store i64 %new, ptr %out
  ret void
}
"""
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the directory of objects of an empty cache."""
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    monkeypatch.setattr(object_cache, "_SAID", set())
    return tmp_path / "cache" / "objects"


@pytest.fixture
def compiled(monkeypatch):
    """Return the list of objects that LLVM has compiled."""
    return calls_of(monkeypatch, llvm_jit, "object_of")


def added(number, target=None):
    """Return 100 + number, computed by machine code."""
    text = ADD.replace("NUMBER", str(number))
    module = compile_functions([text], target or Target.host())
    out = np.array([100])
    call(module, "add", [out])
    return int(out[0])


def objects(folder):
    return sorted(folder.iterdir())


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="has no entries")
def test_entries_of_other_forests_share_an_object(compiled):
    """No address of a process, a table or labels is in the code of an entry."""
    X, y = make_classification(n_samples=60, n_features=4, random_state=0)
    names = np.array(["no", "yes"])
    for seed in (0, 1):
        forest = RandomForestClassifier(3, max_depth=4, random_state=seed).fit(X, y)
        module = compile_forest(load_forest(forest), Schedule())
        module.compile_all()
        entry = module.entry("labels", classes=names)
        assert entry is not None
        assert (entry(X.astype(np.float32)) == names[forest.predict(X)]).all()
    texts = ["".join(llvm_jit._texts(*call)[0]) for call in compiled]
    assert sum("@skf_entry" in text for text in texts) == 1


def test_an_object_is_compiled_once(folder, compiled):
    assert [added(1), added(1), added(2), added(1)] == [101, 101, 102, 101]
    assert len(compiled) == 2
    assert len(objects(folder)) == 2


@pytest.mark.parametrize("what", ["target", "llvm", "package", "options"])
def test_what_code_depends_on_is_in_its_name(what, folder, compiled, monkeypatch):
    added(1)
    target = Target.host()
    if what == "target":
        if target.arch != "x86_64":
            pytest.skip("another CPU is asked for by its name on x86-64")
        target = Target.x86_64("v2")
    elif what == "llvm":
        monkeypatch.setattr(code, "llvm_version", lambda: "99")
    elif what == "package":
        monkeypatch.setattr(code, "__version__", "0.0.9")
    else:
        real = code.machine_options
        monkeypatch.setattr(
            code, "machine_options", lambda target: real(target) | {"opt": 1}
        )
    assert added(1, target) == 101
    assert len(compiled) == 2
    assert len(objects(folder)) == 2


def test_texts_are_told_apart_where_they_are_joined():
    assert object_cache.key_of(["ab", "c"]) != object_cache.key_of(["a", "bc"])
    assert object_cache.key_of(["a"]) != object_cache.key_of(["a", ""])


def test_it_can_be_switched_off(folder, compiled, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    assert [added(1), added(1)] == [101, 101]
    assert len(compiled) == 2
    assert not folder.exists()


def test_what_is_neither_on_nor_off_is_said(folder, compiled, monkeypatch):
    monkeypatch.setattr(_config, "_WARNED", set())
    monkeypatch.setenv("SKFORGE_CACHE", "/some/folder")
    with pytest.warns(UserWarning) as said:
        assert [added(1), added(1)] == [101, 101]
    assert [str(one.message) for one in said] == [
        "SKFORGE_CACHE is '/some/folder', which is not on or off; it is taken for off; "
        "SKFORGE_CACHE_DIR moves the cache."
    ]
    assert len(compiled) == 2
    assert not folder.exists()


def test_where_it_is(monkeypatch):
    monkeypatch.delenv("SKFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr(sys, "platform", "linux")
    assert object_cache.directory() == "/somewhere/skforge"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert object_cache.directory() == str(Path.home() / ".cache" / "skforge")

    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # homeless
    assert object_cache.directory() is None


def test_a_home_in_its_place_is_expanded(monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", "~/x")
    assert object_cache.directory() == str(Path.home() / "x")


# ------------------------------------------------------------ damage


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_no_damaged_byte_reaches_the_loader(step, folder, compiled):
    added(1)
    (path,) = objects(folder)
    whole = path.read_bytes()
    payload = object_cache.find(path.name)
    assert payload is not None
    assert payload in whole
    for at in range(0, len(whole), step):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        assert object_cache.find(path.name) is None
    for size in range(0, len(whole), step):
        path.write_bytes(whole[:size])
        assert object_cache.find(path.name) is None
    path.write_bytes(whole + b"x")
    assert object_cache.find(path.name) is None
    assert added(1) == 101  # compiled, and written again
    assert path.read_bytes() == whole
    assert len(compiled) == 2


@pytest.mark.parametrize("junk", [b"junk", b"\x7fELF" + bytes(200), b"\0" * 5000])
def test_junk_under_a_right_digest_is_compiled_anew(junk, folder, compiled):
    added(1)
    (path,) = objects(folder)
    whole = path.read_bytes()
    object_cache.store(path.name, junk)
    assert object_cache.find(path.name) == junk
    assert added(1) == 101
    assert path.read_bytes() == whole
    assert len(compiled) == 2


@posix
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_what_is_no_file_is_not_waited_for(kind, folder, compiled):
    added(1)
    (path,) = objects(folder)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        here = os.open(folder, os.O_RDONLY)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
    before = len(os.listdir("/proc/self/fd"))
    assert object_cache.find(path.name) is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert added(1) == 101
    assert len(compiled) == 2
    assert path.is_file() == (kind != "folder")  # replaced, where that can be


def test_an_object_under_another_name_is_not_used(folder):
    added(1)
    added(2)
    one, other = objects(folder)
    other.write_bytes(one.read_bytes())
    assert object_cache.find(other.name) is None
    assert [added(1), added(2)] == [101, 102]


def test_a_key_whose_object_is_empty(folder):
    key = object_cache.key_of(["x"])
    object_cache.store(key, b"")
    assert object_cache.find(key) is None


# ------------------------------------------------------------ other people


@posix
@pytest.mark.parametrize("level", ["cache", "objects", "file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_not_used(level, mode, folder, compiled, caplog):
    added(1)
    (path,) = objects(folder)
    assert [p.stat().st_mode & 0o777 for p in (folder.parent, folder, path)] == [
        0o700,
        0o700,
        0o600,
    ]
    loose = {"cache": folder.parent, "objects": folder, "file": path}[level]
    loose.chmod(loose.stat().st_mode | mode)
    with caplog.at_level(logging.DEBUG, "skforge"):
        assert [added(1), added(1)] == [101, 101]
    said = (
        "other users may write to it"
        if level == "file"
        else "other users own it or may write to it"
    )
    text = f"object cache: {loose} is not used: {said}"
    anew = (f"{text}, so that every process compiles its kernels anew", "INFO")
    assert [(r.getMessage(), r.levelname) for r in caplog.records] == [
        (text, "DEBUG"),
        *[anew][: level != "file"],
    ]
    # a loose file is replaced by one of our own, a loose directory is left alone
    assert len(compiled) == (2 if level == "file" else 3)


def everything(folder):
    """Return what lies in a folder, with its modes and contents."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else None
        found[path] = (path.stat().st_mode & 0o7777, content)
    return found


@pytest.mark.sampled(4)
@posix
@pytest.mark.parametrize("before", ["empty", "used"])
@pytest.mark.parametrize("level", ["cache", "locks", "objects"])
def test_nothing_is_made_where_others_may_write(level, before, folder):
    """A whole fit keeps kernels and a search, which takes a lock."""
    X, y = make_classification(n_samples=60, n_features=4, random_state=0)
    source = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, y)
    options = {"tuning": Tuner(budget=1.0), "batch_sizes": [8], "target": "cpu"}
    cache = folder.parent
    if before == "used":
        CompiledForest(source, **options).fit(X)
        kinds = {path.name for path in cache.iterdir()}
        assert kinds - {"machines"} == {"kernels", "locks", "objects", "samples"}
        modes = {mode for mode, _ in everything(cache).values()}
        assert modes == {0o700, 0o600}
    loose = cache if level == "cache" else cache / level
    loose.mkdir(parents=True, exist_ok=True)
    loose.chmod(0o1777)
    before_fit = everything(loose)
    fast = CompiledForest(source, **options).fit(X)
    assert fast.predict(X).tobytes() == source.predict(X).tobytes()
    assert everything(loose) == before_fit


@posix
def test_a_profile_that_is_a_pipe_is_not_waited_for(folder):
    unknown, found = replace(Target.host(), cpu="unheard-of"), []
    os.mkfifo(machine.kept_in(unknown))

    def read():
        found.append(machine.known_profile(unknown))

    thread = Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert found == [MachineProfile.of(unknown)]


@posix
@pytest.mark.parametrize("level", ["directory", "file"])
def test_what_others_own_is_not_used(level, folder, compiled, monkeypatch):
    added(1)
    if os.geteuid() == 0:
        (path,) = objects(folder)
        os.chown(folder if level == "directory" else path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert added(1) == 101
    assert len(compiled) == 2


def warm(path, *options, **environment):
    """Fill the cache in a process of its own."""
    command = sys.executable, "-m", "skforge", "warm", path, *options
    subprocess.run(command, check=True, env={**os.environ, **environment})


SERVED = """
import os, sys, skforge
os.geteuid = lambda: 12345
fast = skforge.load(sys.argv[1])
print(fast.predict([{"a": 1.0, "b": 2.0}, {"a": -1.0, "b": 0.5}]).tolist())
print([m for m in ("llvmlite", "skforge.compiler.ir.lir.nodes") if m in sys.modules])
"""


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="for root")
def test_a_cache_that_root_has_filled_serves_other_users(folder, tmp_path):
    frame = pd.DataFrame({"a": [1.0, -1.0], "b": [2.0, 0.5]})
    model = RandomForestRegressor(3, random_state=0).fit(frame, [3.0, 4.0])
    path = tmp_path / "m.skforge"
    skforge.save(CompiledForest(model, tuning="off").fit(frame), path)
    warm(path, "--shared")
    command = sys.executable, "-c", SERVED, path
    served = subprocess.check_output(command, text=True)
    assert served == f"{model.predict(frame).tolist()}\n[]\n"


#: Without its capabilities, root may not read either what modes forbid.
UNREADABLE = """
import ctypes, sys
capset = getattr(ctypes.CDLL(None), "capset", None)
if capset:
    capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
for without in sys.argv[2:]:
    sys.modules[without] = None
import skforge
try:
    print(skforge.load(sys.argv[1]).predict([[1.0, 1.0]]).tolist())
except skforge.SkforgeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """Return a file, its cache, which is filled, and what it answers."""
    place = tmp_path_factory.mktemp("warmed")
    model = RandomForestRegressor(3, random_state=0).fit([[0, 0], [1, 2]], [3.0, 4.0])
    skforge.save(plain(model).fit([[0, 0], [1, 2]]), place / "m.skforge")
    cache = {"SKFORGE_CACHE_DIR": str(place / "cache"), "SKFORGE_CACHE": "on"}
    warm(place / "m.skforge", "--shared", **cache)
    return place / "m.skforge", place / "cache", str(model.predict([[1, 1]]).tolist())


def asked(path, *without):
    command = sys.executable, "-c", UNREADABLE, path, *without
    return subprocess.check_output(command, text=True).strip()


@posix
@pytest.mark.parametrize("hidden", ["", "a file", "all files", "a folder"])
def test_a_cache_that_cannot_be_read_is_no_worse_than_none(hidden, folder, warmed):
    path, cache, answer = warmed
    shutil.copytree(cache, folder.parent)
    if not hidden:
        assert asked(path, "llvmlite") == answer
        return
    # first a kernel's, which each process asks for
    files = sorted(folder.parent.glob("*/*"), key=lambda f: f.parent.name != "kernels")
    if hidden == "a file":
        for file in files[1:]:
            file.unlink()
    for place in {"a folder": [folder], "a file": files[:1]}.get(hidden, files):
        place.chmod(0o200)
    assert asked(path, "llvmlite") == (
        f"the cache ({folder.parent}) has entries that this user may not read, and "
        "llvmlite is not installed, which compiles what the cache lacks. Run skforge "
        "warm --shared as the user who fills the cache, or install llvmlite."
    )
    assert asked(path) == answer


THIN = """
import sys, numpy as np
for name in ("joblib", "llvmlite", "scipy", "sklearn", "threadpoolctl", "typer"):
    sys.modules[name] = None
import skforge
fast, rows = skforge.load(sys.argv[1]), np.load(sys.argv[2])
if len(sys.argv) > 3:
    fast.n_jobs = int(sys.argv[3])
for n in (1, 20, len(rows)):
    print(fast.predict(rows[:n]).sum().item().hex())
    print(fast.predict_contribs(rows[:n]).sum().item().hex())
print(fast.predict([{"a": 1.0, "b": 2.0}, {"a": -1.0, "b": 0.5}]).tolist())
"""


@pytest.mark.parametrize(
    "n_jobs", [[], ["2"], pytest.param(["-1"], marks=pytest.mark.slow)]
)
def test_a_filled_cache_needs_numpy_alone(n_jobs, folder, tmp_path, monkeypatch):
    numbers = np.random.default_rng(0).normal(size=(3000, 2))
    frame = pd.DataFrame(numbers, columns=["a", "b"])
    model = RandomForestRegressor(9, max_depth=6, random_state=0)
    model.fit(frame, frame["a"])
    path, rows = tmp_path / "m.skforge", tmp_path / "rows.npy"
    fast = CompiledForest(model, tuning="off").fit(frame)
    if n_jobs == ["2"]:
        fast = plain(model).fit(frame)  # its entries share no rows
    skforge.save(fast, path)
    np.save(rows, numbers)
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "image"))
    thin = sys.executable, "-c", THIN, path, rows, *n_jobs
    failed = subprocess.run(thin, capture_output=True, text=True)
    assert failed.stderr.splitlines()[-1].startswith(
        f"skforge.exceptions.CompilerError: the cache ({tmp_path / 'image'}) has no "
        "machine code for this model, batch size, CPU and release"
    )
    how = "--contribs", *(["--n-jobs", *n_jobs] if n_jobs else [])
    # where the cache is filled, threads may be fewer than where it is used
    warm(path, *how, OMP_NUM_THREADS="1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    printed = subprocess.check_output(thin, text=True).splitlines()
    expected = []
    for n in (1, 20, len(numbers)):
        for answer in (fast.predict(frame[:n]), fast.predict_contribs(frame[:n])):
            expected.append(answer.sum().item().hex())
    some = pd.DataFrame({"a": [1.0, -1.0], "b": [2.0, 0.5]})
    assert printed == [*expected, str(model.predict(some).tolist())]


@posix
def test_links_are_not_followed(folder, compiled, tmp_path):
    added(1)
    (path,) = objects(folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert object_cache.find(path.name) is None
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert added(1) == 101
    assert len(compiled) == 2


@pytest.mark.parametrize("trouble", ["read-only", "full", "file in its place"])
def test_without_a_place_there_is_no_cache(
    trouble, folder, compiled, caplog, monkeypatch
):
    if trouble == "file in its place":
        folder.parent.write_bytes(b"")
    else:
        error = OSError(30 if trouble == "read-only" else 28, "no room")

        def refuse(*_args, **_options):
            raise error

        monkeypatch.setattr(os, "replace" if trouble == "full" else "mkdir", refuse)
    with caplog.at_level(logging.DEBUG, "skforge"):
        assert [added(1), added(1)] == [101, 101]
    assert len(compiled) == 2
    assert len(caplog.records) >= 1
    assert len({r.getMessage() for r in caplog.records}) == len(caplog.records)
    told = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert all(text.endswith(" compiles its kernels anew") for text in told)
    assert told
    if trouble == "full":
        assert objects(folder) == []


# ------------------------------------------------------------ bounds


def fill(folder, sizes, start):
    """Store objects, each used a minute after the one before."""
    for i, size in enumerate(sizes):
        key = f"ff{i:062x}"
        object_cache.store(key, bytes(size))
        os.utime(folder / key, (start + 60 * i, start + 60 * i))


@pytest.mark.parametrize("age", [100_000, 560])  # others store thousands in minutes
def test_the_longest_unused_go_first(folder, monkeypatch, age):
    start = time.time() - age
    fill(folder, [1000] * 8, start)
    size = objects(folder)[0].stat().st_size
    monkeypatch.setattr(object_cache, "MOST_BYTES", 5 * size)
    assert object_cache.find(f"ff{0:062x}") is not None  # used now
    object_cache.evict(folder)
    assert [int(p.name[2:], 16) for p in objects(folder)] == [0, 4, 5, 6, 7]
    monkeypatch.setattr(object_cache, "MOST_FILES", 2)
    object_cache.evict(folder)
    assert [int(p.name[2:], 16) for p in objects(folder)] == [0, 7]


def test_it_is_bounded_by_itself(folder, monkeypatch):
    monkeypatch.setattr(object_cache, "MOST_FILES", 20)
    for i in range(400):
        object_cache.store(hashlib.sha256(b"%d" % i).hexdigest(), b"x" * 100)
    assert 1 <= len(objects(folder)) <= 20 + 200  # looked at one time in 32


def test_leftovers_are_cleared(folder):
    added(1)
    old, new = folder / ".0123.dead", folder / ".4567.live"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    object_cache.evict(folder)
    assert not old.exists()
    assert new.exists()


def test_threads_share_it(folder):
    def work(i):
        key = object_cache.key_of([str(i % 5)])
        object_cache.store(key, str(i % 5).encode() * 1000)
        return object_cache.find(key) == str(i % 5).encode() * 1000

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))
    assert len(objects(folder)) == 5


# ------------------------------------------------------------ many at once


FILL = f"""
import numpy as np
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import compile_functions
from tests.run_kernel import call

for number in 2 * [*range(12)]:
    out, text = np.array([100]), {ADD!r}.replace("NUMBER", str(number))
    call(compile_functions([text], Target.host()), "add", [out])
    assert out[0] == 100 + number
"""


def test_processes_fill_one_cache(folder):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_python, [FILL] * 2))
    assert len(objects(folder)) == 12
    assert all(object_cache.find(path.name) for path in objects(folder))


def test_code_of_another_process_runs(folder, compiled):
    run_python(FILL)
    assert [added(n) for n in range(12)] == [100 + n for n in range(12)]
    assert compiled == []


def test_schedules_that_find_leaves_are_chosen_once(folder, monkeypatch):
    """What the cache has of them is what is chosen; damage is chosen anew."""
    forest = RandomForestRegressor(9, max_depth=3, random_state=0)
    X = np.random.default_rng(0).normal(size=(99, 3))
    forest.fit(X, X[:, 0])
    expected, chosen = forest.apply(X), []
    choose = targets.default_table

    def counted(*how, **measured):
        chosen.append(how)
        return choose(*how, **measured)

    monkeypatch.setattr(targets, "default_table", counted)

    def answered():
        chosen.clear()
        fast = CompiledForest(forest, tuning="off", schedule="auto").fit(X)
        calls = len(chosen)
        np.testing.assert_array_equal(fast.apply(X), expected)
        return len(chosen) - calls

    assert [answered(), answered()] == [1, 0]
    for file in folder.iterdir():
        key = file.name
        content = object_cache.find(key)
        if content is not None and content.startswith(b"[[1,"):
            object_cache.store(key, b"[[1, 1, {}]]")
    assert [answered(), answered()] == [1, 0]
