"""macOS: Mach-O objects of each kind; and the system simulated on this one.

A machine whose objects are Mach-O is this one, except for the system: LLVM links such
objects on Linux, too, and both systems call functions in the same way, as far as
generated code calls them.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from threadpoolctl import threadpool_limits

import skforge
from skforge import CompiledForest
from skforge.compiler import system
from skforge.compiler import target as targets
from skforge.compiler.binning.encoder_routines import encoder
from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.defaults.cpu import contribution_schedules
from skforge.compiler.ir.lir.nodes import F32, Function
from skforge.compiler.passes.lir import simplify
from skforge.compiler.target import Target
from skforge.engine import hashing
from skforge.engine.cpu import threads, workers
from skforge.engine.cpu.jit import emit_assembly, emit_object
from skforge.engine.entry import entry, hashing_routines, mappings, routines
from skforge.engine.explanations import background, dependence_function
from skforge.engine.sparse_function import function as sparse_function
from skforge.exceptions import TargetError
from skforge.exporters import library, wheel
from skforge.exporters.contents import Library
from skforge.outputs.steps import Steps
from skforge.runtime import loading
from skforge.schedule.families import bitsliced_schedule, tiled_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import lowered
from tests.exactness.forests import forest
from tests.export_tools import small_forest
from tests.outputs_of import outputs_of
from tests.programs import without_executable_memory

M1 = replace(Target.aarch64(), triple="aarch64-apple-macosx11.0", cpu="apple-m1")

#: Functions of libSystem that generated code may call; aligned_alloc is of 10.15.
LIBSYSTEM = {
    *("aligned_alloc", "free", "memcpy", "memmove", "memset", "bzero", "strlen"),
    *("exp", "expf", "log1p", "log1pf"),
}


def macho(binary: bytes) -> tuple[int, set[str], set[str]]:
    """Return the oldest macOS of an object, its symbols, and those it looks for."""
    magic, _, _, kind, n_commands = struct.unpack_from("<5I", binary)
    assert (magic, kind) == (0xFEEDFACF, 1), "an object of 64 bits"
    at, oldest, defined, wanted = 32, 0, set[str](), set[str]()
    for _ in range(n_commands):
        command, size = struct.unpack_from("<II", binary, at)
        if command == 0x32:  # LC_BUILD_VERSION
            platform, oldest = struct.unpack_from("<II", binary, at + 8)
            assert platform == 1, "macOS"
        elif command == 2:  # LC_SYMTAB
            first, count, texts, _ = struct.unpack_from("<4I", binary, at + 8)
            for k in range(count):
                name, flags = struct.unpack_from("<IB", binary, first + 16 * k)
                end = binary.index(b"\0", texts + name)
                found = defined if flags & 0x0E else wanted
                found.add(binary[texts + name : end].decode())
        at += size
    return oldest >> 16, defined, wanted


# ---------------------------------------------------------------- objects of each kind


def kernels() -> Iterator[Function]:
    """Yield kernels of the families: with scratch, categories and parallel loops."""
    made = small_forest()
    for schedule in (Schedule(), bitsliced_schedule(4096), tiled_schedule(64)):
        yield lowered(made, schedule, M1).function
    yield lowered(forest("categories"), Schedule(), M1, element="leaf_number").function
    schedule, *_ = contribution_schedules(made, "contributions").values()
    yield lowered(made, schedule, M1, element="contribution").function


def entries(transform: str, n_outputs: int) -> list[Function]:
    """Return an entry's routines, for rows that threads share, and Python's labels."""
    spec = outputs_of(transform, "binary", "xgboost", n_outputs)
    steps = Steps(function=spec.function, spec=spec)
    made = entry.kind_of(small_forest(), steps, "infinite", np.inf)
    takes = replace(made, n_outputs=n_outputs, shared=True)
    return routines.write(takes)


PARTS: dict[str, Callable[[], Sequence[Function]]] = {
    "sigmoid": lambda: entries("sigmoid", 1),
    "softmax": lambda: entries("softmax", 3),
    "objects": lambda: [
        *hashing._routines(),
        hashing_routines.body_of_objects(),
        *routines.functions(),
    ],
    "mappings": mappings._routines,
    "limit": lambda: threads._routines(None),
    "encoder": lambda: [encoder(M1)],
    "sparse": lambda: [
        sparse_function(np.dtype("f4"), np.dtype("f4"), less, 64) for less in (True,)
    ],
    "dependence": lambda: [dependence_function.function("spread", F32, True, True, 4)],
    "backgrounds": lambda: [simplify.run(background.fill.fill_function())],
}


def check(texts: Sequence[str]) -> set[str]:
    """Check an object for macOS; return the symbols that it defines."""
    oldest, defined, wanted = macho(emit_object(texts, M1))
    assert oldest == 11
    # What entries look for is passed to the linker, as are the pool's functions.
    assert {name for name in wanted if not name.startswith("_skf_")} <= {
        f"_{name}" for name in LIBSYSTEM
    }
    assert "..." not in "".join(texts), "Apple passes variable arguments on the stack"
    assembly = emit_assembly(texts, M1)
    assert re.search(r"\b[xw]\d", assembly), "registers are written so"
    assert not re.search(r"\b[xw]18\b", assembly), "the system's register"
    return defined


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", PARTS)
def test_routines_need_no_more_than_libsystem(part: str) -> None:
    assert check([emit_llvm(function, M1) for function in PARTS[part]()])


def test_kernels_need_no_more_than_libsystem() -> None:
    for kernel in kernels():
        assert f"_{kernel.name}" in check([emit_llvm(kernel, M1)])


def test_exported_libraries_need_no_more_than_libsystem() -> None:
    forest = small_forest()
    tiny = Library("tiny", forest, *library.outputs_of(forest), apply=True)
    made, binary = library.export_object(tiny, [M1], [None], [1, 9], True, True)
    oldest, defined, wanted = macho(binary)
    assert oldest == 11
    assert wanted <= {f"_{name}" for name in LIBSYSTEM}
    assert {f"_tiny_{name}_f32" for name in made.results} < defined


# ---------------------------------------------------------------- the system simulated


class Renamed:
    """Addresses of a Mach-O object's symbols, which begin with an underscore."""

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def __getitem__(self, name: str) -> int:
        return int(self.loaded[f"_{name}"])


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give this machine macOS's objects and threads; return what was loaded."""
    host, load, names = Target.host(), loading.load_object, list[str]()
    simulated = replace(host, triple=f"{host.arch}-apple-macosx11.0")

    def load_object(
        binary: bytes, wanted: Sequence[str], symbols: dict[str, int] | None = None
    ) -> Renamed:
        names.extend(wanted)
        here = ctypes.CDLL(None)
        known = {
            name: ctypes.cast(getattr(here, name), ctypes.c_void_p).value or 0
            for name in LIBSYSTEM - {"bzero"}
        } | dict(symbols or {})
        _, defined, foreign = macho(binary)
        assert {f"_{name}" for name in wanted} <= defined
        assert foreign <= {f"_{name}" for name in known}
        symbols = {f"_{name}": address for name, address in known.items()}
        return Renamed(load(binary, [f"_{name}" for name in wanted], symbols))

    monkeypatch.setattr(targets, "_host", lambda: simulated)
    monkeypatch.setattr(loading, "load_object", load_object)
    monkeypatch.setattr(workers, "SEMAPHORES", False)
    monkeypatch.setattr(threads, "_workers", workers.Workers(threads._routines))
    mappings._reader.cache_clear()
    yield names
    mappings._reader.cache_clear()


needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="links Mach-O objects as Linux's LLVM does"
)


@needs_linux
def test_models_answer_as_they_do_on_linux(mac: list[str]) -> None:
    random = np.random.default_rng(0)
    X = np.round(random.standard_normal((3000, 5)), 1)
    y = (X[:, 0] > X[:, 1]) + (X[:, 2] > 1)
    model = RandomForestClassifier(9, max_depth=6, random_state=0).fit(X, y)
    shared = Schedule().tile("batch", "b0", "b1", 512).parallel("b0")
    fast = CompiledForest(model, tuning="off", schedule=shared, n_jobs=2).fit(X)
    with threadpool_limits(2, "openmp"):
        for rows in (X[:1], X[:7], X) * 4:  # the later calls by an entry
            assert np.array_equal(fast.predict(rows), model.predict(rows))
            found = fast.predict_proba(rows)
            assert found.tobytes() == model.predict_proba(rows).tobytes()
    assert {"skf_entry", "skforge_no_limit", "predict"} <= {*mac}
    assert threads._workers._python is not None
    assert threads._workers._python._executor is not None, "its threads have run"


# ---------------------------------------------------------------- what is of the system


def as_on(platform: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return ``system`` as it is imported there."""
    spec = spec_from_file_location("system_there", system.__file__)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    with monkeypatch.context() as there:
        there.setattr(sys, "platform", platform)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("platform", "triple", "heap", "model"),
    [
        ("linux", "unknown-linux-gnu", "@aligned_alloc", "small"),
        ("darwin", "apple-macosx11.0", "@aligned_alloc", "small"),
        ("win32", "pc-windows-msvc-elf", "@_aligned_malloc", "large"),
    ],
)
def test_each_system_has_objects_heap_and_addresses(
    platform: str, triple: str, heap: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = as_on(platform, monkeypatch)
    assert triple == there.TRIPLE_SUFFIX
    assert heap in there.heap_texts(triple)[0]
    assert there.code_model(triple)["codemodel"] == model


def test_the_host_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    class Llvm:
        def get_process_triple(self) -> str:
            return "arm64-apple-darwin24.3.0"

        def get_host_cpu_name(self) -> str:
            return "apple-m1"

        def get_host_cpu_features(self) -> Any:
            return self

        def flatten(self) -> str:
            return ""  # LLVM asks Linux and Windows alone

    monkeypatch.setattr(targets, "cpu_facts", lambda: "")
    monkeypatch.setattr(targets, "llvmlite", Llvm)
    monkeypatch.setattr(targets.platform, "machine", lambda: "arm64")
    there = as_on("darwin", monkeypatch)
    monkeypatch.setattr(targets, "TRIPLE_SUFFIX", there.TRIPLE_SUFFIX)
    host = targets._host.__wrapped__()
    assert (host.triple, host.cpu) == ("aarch64-apple-macosx11.0", "apple-m1")
    assert host.features == "+fp-armv8,+neon"


# ---------------------------------------------------------------- libraries


def test_libraries_are_linked_on_a_mac(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary, commands = (
        emit_object("define void @f() { ret void }", M1),
        list[list[str]](),
    )

    def run(command: list[str], cwd: str, **_: Any) -> Any:
        commands.append(command)
        (Path(cwd) / "libtiny.dylib").write_bytes(b"linked")
        return wheel.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheel.sys, "platform", "darwin")
    monkeypatch.setattr(wheel, "_drivers", lambda _: ["cc"])
    monkeypatch.setattr(wheel.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(wheel.subprocess, "run", run)
    assert wheel.link_shared(binary, "libtiny.dylib", M1, True) == b"linked"
    assert [word for command in commands for word in command] == [
        *("cc", "-mmacosx-version-min=11.0", "-shared", "-Wl,-install_name"),
        *("-Wl,@rpath/libtiny.dylib", "-o", "libtiny.dylib", "library.o", "-lm"),
    ]
    assert wheel.platform_tag(b"", M1, True) == "macosx_11_0_arm64"


def test_elsewhere_an_error_says_where_they_are_linked(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="are linked on that system; use kind"):
        skforge.export(small_forest(), tmp_path / "tiny", "wheel", M1, batch_sizes=[1])
    made = skforge.export(small_forest(), tmp_path / "tiny", target=M1, batch_sizes=[1])
    assert macho((made / "tiny.o").read_bytes())[0] == 11


@needs_linux
def test_llvm_is_not_asked_where_memory_may_not_be_executed(tmp_path: Path) -> None:
    code = emit_object("define void @f() { ret void }", M1)
    assert "hardened runtime" in without_executable_memory(tmp_path, code, "_f")
