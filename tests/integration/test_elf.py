"""Our own linker: what it loads computes the same; the rest is left to LLVM's."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import struct
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from skforge.compiler.target import Target
from skforge.engine.cpu.jit import emit_object
from skforge.runtime import elf, loading
from tests.noted import calls_of
from tests.programs import run_python, without_executable_memory

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or Target.host().arch not in ("x86_64", "aarch64"),
    reason="it links for Linux on x86-64 and Arm",
)

TEXT = """
@counter = internal global i64 5
@zeros = internal global [100 x i64] zeroinitializer
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@pointers = internal constant [1 x ptr] [ptr @table]
@elsewhere = external global i64
declare i64 @outside(i64)
declare i64 @labs(i64)

define i64 @count(i64 %by) nounwind {
  %old = load i64, ptr @counter
  %new = add i64 %old, %by
  store i64 %new, ptr @counter
  %last = getelementptr i64, ptr @zeros, i64 99
  store i64 %new, ptr %last
  %again = load i64, ptr %last
  ret i64 %again
}
define i64 @look(i64 %i) nounwind {
  %list = load ptr, ptr @pointers
  %at = getelementptr i64, ptr %list, i64 %i
  %x = load i64, ptr %at
  ret i64 %x
}
define i64 @far(i64 %x) nounwind {
  %positive = call i64 @labs(i64 %x)
  %y = call i64 @outside(i64 %positive)
  %z = load i64, ptr @elsewhere
  %sum = add i64 %y, %z
  ret i64 %sum
}
"""
CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


@CALL
def outside(x):
    return 1000 * x


ELSEWHERE = ctypes.c_int64(7)
SYMBOLS = {
    "outside": ctypes.cast(outside, ctypes.c_void_p).value,
    "elsewhere": ctypes.addressof(ELSEWHERE),
}


@pytest.fixture(scope="module")
def binary():
    return emit_object(TEXT, Target.host())


@pytest.fixture
def by_llvm(monkeypatch):
    """Return the list of objects that were left to LLVM's linker."""
    return calls_of(monkeypatch, loading, "_next_library")


def check(image):
    count, look, far = (CALL(int(image[name])) for name in ("count", "look", "far"))
    assert [count(1), count(10)] == [6, 16]
    assert [look(i) for i in range(4)] == [10, 20, 30, 40]
    assert far(-3) == 3007


def test_code_constants_data_and_functions_outside(binary, by_llvm):
    for _ in range(2):  # each has data of its own
        check(loading.load_object(binary, ["count", "look", "far"], SYMBOLS))
    assert not by_llvm


def mapped(address):
    """Return the protection of the pages at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1]
    return None


def test_no_page_is_written_and_executed(binary):
    image = elf.link(binary, SYMBOLS)
    assert mapped(image["count"]) == mapped(image["table"]) == "r-xp"
    assert mapped(image["counter"]) == mapped(image["zeros"]) == "rw-p"


def test_memory_is_freed_with_its_image(binary):
    address = elf.link(binary, SYMBOLS)["count"]
    gc.collect()
    assert mapped(address) is None


def test_a_forked_child_has_data_of_its_own(binary):
    count = CALL((image := elf.link(binary, SYMBOLS))["count"])
    child = os.fork()
    if child == 0:
        os._exit(count(100) - 100)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert count(1) == 6
    del image


def section(binary, kind):
    """Return where the header of the first section of a kind is."""
    (first,) = struct.unpack_from("<Q", binary, 40)
    size, count = struct.unpack_from("<HH", binary, 58)
    places = range(first, first + size * count, size)
    return next(p for p in places if struct.unpack_from("<I", binary, p + 4) == (kind,))


def changed(binary, at, form, value):
    other = bytearray(binary)
    struct.pack_into(form, other, at, value)
    return bytes(other)


def test_what_it_does_not_know_is_refused(binary):
    relocations = section(binary, 4)
    (offset,) = struct.unpack_from("<Q", binary, relocations + 24)
    strange = {
        "another machine": changed(binary, 18, "<H", 62 + 183 - elf._MACHINE),
        "a library": changed(binary, 16, "<H", 3),
        "a relocation": changed(binary, offset + 8, "<I", 10),
        "a section": changed(binary, section(binary, 1) + 4, "<I", 14),
        "data of threads": changed(binary, section(binary, 1) + 8, "<Q", 0x407),
        "no symbols": changed(binary, section(binary, 2) + 4, "<I", 11),
        "no object": b"junk" * 50,
        "nothing": b"",
    }
    for name, damaged in strange.items():
        with pytest.raises(elf.LinkError):
            elf.link(damaged, SYMBOLS)
            pytest.fail(name)
    unwinds = emit_object(TEXT.replace("nounwind", ""), Target.host())
    if Target.host().arch == "x86_64":  # on Arm, such tables are ordinary constants
        with pytest.raises(elf.LinkError, match="section"):
            elf.link(unwinds, SYMBOLS)
    with pytest.raises(elf.LinkError, match="no symbol 'outside'"):
        elf.link(binary, {})


def test_damage_is_refused_or_stays_within_the_memory(binary):
    """Digests find damage before; no byte of an object leads out of its memory."""
    for at in range(0, len(binary), 7):
        for end in (binary[:at], changed(binary, at, "<B", binary[at] ^ 0xFF)):
            with suppress(elf.LinkError):
                elf.link(end, SYMBOLS)


def test_llvm_links_what_is_refused(binary, by_llvm, monkeypatch):
    def refuse(*_):
        raise elf.LinkError("refused")

    monkeypatch.setattr(elf, "link", refuse)
    check(loading.load_object(binary, ["count", "look", "far"], SYMBOLS))
    assert by_llvm


def test_where_memory_may_not_be_executed_an_error_says_so(binary, tmp_path):
    said = without_executable_memory(tmp_path, binary, "count", *SYMBOLS)
    assert "refuses executable memory" in said
    assert "skforge.export" in said


def test_the_runtime_imports_numpy_and_the_standard_library_alone():
    folder = Path(elf.__file__).parent
    names = [f"skforge.runtime.{file.stem}" for file in folder.glob("[a-z]*.py")]
    assert names
    program = (
        "import sys, numpy; before = {*sys.modules}; import "
        f"{', '.join(names)}; print(*({{*sys.modules}} - before))"
    )
    loaded = run_python(program)
    ours = {name for name in loaded.split() if re.match(r"skforge\b", name)}
    low = {"skforge", "skforge._typing", "skforge._version"}
    low |= {"skforge.config", "skforge.exceptions"}
    assert ours - low == {"skforge.runtime", *names}
    others = {name.partition(".")[0] for name in {*loaded.split()} - ours}
    assert others <= {"numpy", *sys.stdlib_module_names}
