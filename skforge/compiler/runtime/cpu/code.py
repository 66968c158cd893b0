"""Machine code in this process, and what it depends on."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from skforge._version import __version__
from skforge.compiler.system import RELEASE, code_model
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.runtime.facts import llvm_version
from skforge.runtime.loading import load_object

# The C signature of a kernel; a CFUNCTYPE call releases the GIL.
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_RELEASE_PROTOTYPE = ctypes.CFUNCTYPE(None)


def machine_options(target: Target) -> dict[str, Any]:
    features = target.features
    if target.arch == "x86_64" and target.has_gather:
        # LLVM considers AVX2's gathers slow and emits branches for masked ones: a
        # vector walk took 1.18 µs a row and 69 ms to compile; with this, 0.89 and 14.
        features += ",+fast-gather"
    model = code_model(target.triple)
    return {"cpu": target.cpu, "features": features, "opt": 2, **model}


def code_facts(target: Target) -> tuple[str, ...]:
    """Return what machine code depends on besides its text."""
    options = (f"{name}={value}" for name, value in machine_options(target).items())
    return __version__, llvm_version(), target.triple, *options


def _release(functions: Sequence[Any], loaded: Any) -> None:
    """Free the scratch that a module's kernels keep."""
    for function in functions:
        function()
    del loaded


class MachineCode:
    """Machine code in this process, which lives as long as this object.

    ``names`` are the kernels' names, for ``address`` and ``function``; ``all_names``
    those of all functions. ``symbols`` are the addresses of functions that the code
    calls; others are looked up in this process.
    """

    def __init__(
        self,
        names: Sequence[str],
        binary: bytes,
        target: Target,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        target.check_runs_here()
        self.all_names = list(names)
        self.names = tuple(n for n in names if not n.endswith(RELEASE))
        self.target = target
        #: The relocatable object that was loaded.
        self.binary = binary
        #: It owns the code.
        self.loaded = loaded = load_object(binary, names, symbols or {})
        self._functions: dict[str, Any] = {}
        ends = (name for name in names if name.endswith(RELEASE))
        releases = [_RELEASE_PROTOTYPE(int(loaded[name])) for name in ends]
        if releases:
            # Keep the code loaded until it has freed its scratch.
            end = weakref.finalize(self, _release, releases, loaded)
            end.atexit = False

    def address(self, name: str) -> int:
        if name not in self.names:
            raise CompilerError(
                f"No kernel {name!r} in this module; it has {', '.join(self.names)}."
            )
        return int(self.loaded[name])

    def function(self, name: str) -> Any:
        """Return a kernel as a ctypes function (slots, pfor address, threads).

        ``slots`` is a bytes object or the array's address; the GIL is released.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = _PROTOTYPE(self.address(name))
        return function
