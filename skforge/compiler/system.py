"""The operating system: the C library, heap and clock that machine code uses.

Windows has no ``aligned_alloc`` and no ``clock_gettime``, and LLVM's COFF objects reach
data by 32-bit distances alone, through stubs that are right for functions only. So its
code is ELF, as LLVM's loader takes any format, and addresses in it have 64 bits.
"""

from __future__ import annotations

import sys
import time

from skforge.runtime.facts import WINDOWS, c_address

#: The oldest macOS that exports run on; LLVM would write that of this machine in them.
MACOS = "11.0"
#: LLVM's vendor, system and ABI of objects that load here.
TRIPLE_SUFFIX = {"darwin": f"apple-macosx{MACOS}", "win32": "pc-windows-msvc-elf"}.get(
    sys.platform, "unknown-linux-gnu"
)

_HEAP = ("declare noalias ptr @aligned_alloc(i64, i64)", "declare void @free(ptr)")
_WINDOWS_HEAP = """declare noalias ptr @_aligned_malloc(i64, i64)
declare void @_aligned_free(ptr)
define linkonce_odr hidden noalias ptr @aligned_alloc(i64 %align, i64 %size) nounwind {
  %block = call ptr @_aligned_malloc(i64 %size, i64 %align)
  ret ptr %block
}
define linkonce_odr hidden void @free(ptr %block) nounwind {
  call void @_aligned_free(ptr %block)
  ret void
}"""


def heap_texts(triple: str) -> tuple[str, ...]:
    return (_WINDOWS_HEAP,) if "windows" in triple else _HEAP


def shared_suffix(triple: str) -> str:
    return "dylib" if "apple" in triple else "dll" if "windows" in triple else "so"


def code_model(triple: str) -> dict[str, str]:
    if triple.endswith("msvc-elf"):
        return {"reloc": "static", "codemodel": "large"}
    return {"reloc": "pic", "codemodel": "small"}


def clock_call(time_at: str) -> str:
    """Return a clock's arguments as LLVM text: seconds, nanoseconds to ``time_at``."""
    arguments = ["i32 %clock", f"ptr {time_at}"]
    return ", ".join(reversed(arguments) if WINDOWS else arguments)


def clock(of_thread: bool) -> tuple[int, int]:
    """Return the clock to read; Windows' clock of threads counts in steps of 16 ms."""
    if sys.platform == "win32":
        return c_address("_timespec64_get"), 1  # TIME_UTC
    number = time.CLOCK_THREAD_CPUTIME_ID if of_thread else time.CLOCK_MONOTONIC
    return c_address("clock_gettime"), number
