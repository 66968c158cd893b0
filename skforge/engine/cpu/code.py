"""Machine code in this process, and what it depends on."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from skforge._version import __version__
from skforge.compiler.system import code_model
from skforge.compiler.target import Target
from skforge.runtime.facts import llvm_version
from skforge.runtime.loading import LoadedCode

# The C signature of a kernel; a CFUNCTYPE call releases the GIL.
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)


def machine_options(target: Target) -> dict[str, Any]:
    features = target.features
    if target.arch == "x86_64" and target.has_gather:
        # LLVM considers AVX2's gathers slow and emits branches for masked ones: a
        # vector walk took 1.18 µs a row and 69 ms to compile; with this, 0.89 and 14.
        features += ",+fast-gather"
    model = code_model(target.triple)
    return {"cpu": target.cpu, "features": features, "opt": 2, **model}


def code_facts(target: Target) -> tuple[str, ...]:
    options = (f"{name}={value}" for name, value in machine_options(target).items())
    return __version__, llvm_version(), target.triple, *options


class MachineCode(LoadedCode):
    #: Where the cache has it: its key and digest; None if it has not.
    cache_key: tuple[str, str] | None = None

    def __init__(
        self,
        names: Sequence[str],
        binary: bytes,
        target: Target,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        target.check_runs_here()
        super().__init__(names, binary, symbols)
        self.target = target
        #: The relocatable object that was loaded.
        self.binary = binary
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = _PROTOTYPE(self.address(name))
            # it may outlive this object
            function.loaded = self.loaded  # type: ignore[attr-defined]
        return function
