"""Loads objects into this process: by our own linker what it knows, else by LLVM's.

That is ORC's LLJIT, for other systems and machines. All uses of LLVM hold one lock, and
a fork waits for it: otherwise a child forked during a compilation would hang on its own
first one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from skforge.exceptions import CompilerError
from skforge.runtime import elf
from skforge.runtime.facts import llvmlite

#: How names of functions end that free the scratch that a kernel keeps.
RELEASE = ".release"

_FREE = ctypes.CFUNCTYPE(None)
_LOCK = threading.RLock()
_LIBRARY_NUMBERS = itertools.count()


@contextmanager
def llvm() -> Iterator[Any]:
    """Hold the lock and yield llvmlite's binding, with all targets initialised."""
    with _LOCK:
        yield llvm_binding()


@lru_cache(maxsize=1)
def llvm_binding() -> Any:
    binding = llvmlite()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()
    # llvmlite has its own lock. Holding both during a fork leaves both free in the
    # child, since any holder has left LLVM by then.
    inner = getattr(getattr(binding.ffi.lib, "_lock", None), "_lock", None)
    locks = [lock for lock in (_LOCK, inner) if lock is not None]
    if hasattr(os, "register_at_fork"):

        def acquire() -> None:
            for lock in locks:
                lock.acquire()

        def release() -> None:
            for lock in reversed(locks):
                lock.release()

        os.register_at_fork(
            before=acquire, after_in_parent=release, after_in_child=release
        )
    return binding


def load_object(
    binary: bytes, names: Sequence[str], symbols: Mapping[str, int] | None = None
) -> Any:
    """Load an object into this process; return an object that owns its addresses."""
    with suppress(elf.LinkError):
        image = elf.link(binary, symbols or {})
        if all(name in image for name in names):
            return image
    elf.check_executable()
    with llvm() as binding:
        builder = binding.JITLibraryBuilder().add_object_img(binary)
        builder.add_current_process()
        for name, address in (symbols or {}).items():
            builder.import_symbol(name, address)
        for name in names:
            builder.export_symbol(name)
        try:
            return builder.link(*_next_library())
        except RuntimeError as error:
            raise CompilerError(
                f"LLVM cannot load {', '.join(map(repr, names))}: {str(error).strip()}"
            ) from error


#: Libraries per LLJIT. An LLJIT takes 160 KB, plus 9 KB per library; it is freed with
#: the last of its modules.
_LIBRARIES = 32

_jit: Any = None


def _next_library() -> tuple[Any, str]:
    """Return an LLJIT and the name of its next library; call with the lock held."""
    global _jit
    number = next(_LIBRARY_NUMBERS)
    if _jit is None or number % _LIBRARIES == 0:
        # RuntimeDyld places code and constants apart, and aborts the process if they
        # are more than 2 GB apart; JITLink uses one block of memory per object.
        _jit = llvm_binding().create_lljit_compiler(
            use_jit_link=sys.platform != "win32"
        )
    return _jit, f"skforge.{number}"


class LoadedCode:
    """Machine code in this process, which lives as long as this object.

    ``names`` are the kernels' names; ``all_names`` those of all functions. ``symbols``
    are the addresses of functions that the code calls; others are looked up in this
    process.
    """

    def __init__(
        self,
        names: Sequence[str],
        binary: bytes,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        self.all_names = list(names)
        self.names = tuple(n for n in names if not n.endswith(RELEASE))
        #: It owns the code.
        self.loaded = loaded = load_object(binary, names, symbols or {})
        ends = (name for name in names if name.endswith(RELEASE))
        releases = [_FREE(int(loaded[name])) for name in ends]
        if releases:
            # Keep the code loaded until it has freed its scratch.
            weakref.finalize(self, _release, releases, loaded).atexit = False

    def address(self, name: str) -> int:
        if name not in self.names:
            raise CompilerError(
                f"No kernel {name!r} in this module; it has {', '.join(self.names)}."
            )
        return int(self.loaded[name])


def _release(functions: Sequence[Any], loaded: Any) -> None:
    for function in functions:
        function()
    del loaded
