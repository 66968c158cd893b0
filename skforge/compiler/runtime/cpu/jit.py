"""Compiles LLVM IR text, in this process or to objects for another machine.

A target machine parses, verifies and compiles the text to an object, which ORC's LLJIT
loads. All uses of LLVM hold one lock, and a fork waits for it: otherwise a child forked
during a compilation would hang on its own first one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeAlias

from skforge._version import __version__
from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.codegen.llvm.pools import RELEASE
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.runtime import object_cache
from skforge.compiler.system import WINDOWS, code_model
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError

_LOCK = threading.RLock()
_LIBRARY_NUMBERS = itertools.count()
_DEFINED = re.compile(r'^define \w+ @("[^"]*"|[^\s(]+)\(', re.MULTILINE)
# The C signature of a kernel; a CFUNCTYPE call releases the GIL.
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)


@contextmanager
def _llvm() -> Iterator[Any]:
    """Hold the lock and yield llvmlite's binding, with all targets initialised."""
    with _LOCK:
        yield _binding()


@lru_cache(maxsize=1)
def _binding() -> Any:
    from llvmlite import binding

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


@lru_cache(maxsize=16)
def _target_machine(target: Target) -> Any:
    """Return LLVM's target machine for a target; call with the lock held."""
    binding = _binding()
    # No middle-end passes: on interleaved walks they cost 30-130 ms and gained nothing
    # (0-4 %, at times -25 %), and SLP vectorisation made the walks 3 times slower.
    try:
        return binding.Target.from_triple(target.triple).create_target_machine(
            **_machine_options(target)
        )
    except RuntimeError as error:
        raise CompilerError(
            f"LLVM cannot compile for {target.triple}: {error}; choose another target."
        ) from error


def _machine_options(target: Target) -> dict[str, Any]:
    features = target.features
    if target.arch == "x86_64" and target.has_gather:
        # LLVM considers AVX2's gathers slow and emits branches for masked ones: a
        # vector walk took 1.18 µs a row and 69 ms to compile; with this, 0.89 and 14.
        features += ",+fast-gather"
    return {
        "cpu": target.cpu,
        "features": features,
        "opt": 2,
        **code_model(target.triple),
    }


def _names(text: str) -> list[str]:
    return [name.strip('"') for name in _DEFINED.findall(text)]


def _texts(
    sources: Sequence[str | lir.Function], target: Target
) -> tuple[list[str], list[str]]:
    texts = [
        source if isinstance(source, str) else emit_llvm(source, target)
        for source in sources
    ]
    return texts, [name for text in texts for name in _names(text)]


def _parse(texts: Sequence[str], target: Target) -> Any:
    """Return one verified module of all texts; call with the lock held."""
    binding, machine = _binding(), _target_machine(target)
    whole: Any = None
    for text in texts:
        names = _names(text)
        try:
            module = binding.parse_assembly(text)
            module.verify()
            module.triple = target.triple
            module.data_layout = str(machine.target_data)
            if whole is None:
                whole = module
            else:
                whole.link_in(module)
        except RuntimeError as error:
            raise CompilerError(
                f"LLVM refuses {', '.join(map(repr, names)) or 'a module'}: "
                f"{str(error).strip()}"
            ) from error
    if whole is None:
        raise CompilerError("There is no function to compile.")
    for symbol in (*whole.functions, *whole.global_variables):
        # What modules hide is known to each other, and to nobody when they are linked.
        if symbol.visibility.name == "hidden" and not symbol.is_declaration:
            symbol.linkage = "internal"
    return whole


def code_facts(target: Target) -> tuple[str, ...]:
    """Return what machine code depends on besides its text."""
    return (
        __version__,
        ".".join(map(str, _binding().llvm_version_info)),
        target.triple,
        *(f"{name}={value}" for name, value in _machine_options(target).items()),
    )


def _object(texts: Sequence[str], target: Target) -> bytes:
    return bytes(_target_machine(target).emit_object(_parse(texts, target)))


_RELEASE_PROTOTYPE = ctypes.CFUNCTYPE(None)


def _release(functions: Sequence[Any], loaded: Any) -> None:
    """Free the scratch that a module's kernels keep."""
    for function in functions:
        function()
    del loaded


class JitModule:
    """Machine code in this process, which lives as long as this object.

    ``names`` are the kernels' names, for ``address`` and ``function``; ``all_names``
    those of all functions.
    """

    def __init__(
        self,
        target: Target,
        names: Sequence[str],
        texts: Sequence[str],
        binary: bytes,
        loaded: Any,
    ) -> None:
        self.all_names = list(names)
        self.names = tuple(n for n in names if not n.endswith(RELEASE))
        self.target = target
        self._texts = texts
        self._object = binary
        self._loaded = loaded  # LLVM's resource tracker; it owns the code
        self._functions: dict[str, Any] = {}
        releases = [
            _RELEASE_PROTOTYPE(int(loaded[name]))
            for name in names
            if name.endswith(RELEASE)
        ]
        if releases:
            # Keep the code loaded until it has freed its scratch.
            end = weakref.finalize(self, _release, releases, loaded)
            end.atexit = False

    def address(self, name: str) -> int:
        if name not in self.names:
            raise CompilerError(
                f"No kernel {name!r} in this module; it has {', '.join(self.names)}."
            )
        return int(self._loaded[name])

    def function(self, name: str) -> Any:
        """Return a kernel as a ctypes function (slots, pfor address, threads).

        ``slots`` is a bytes object or the array's address; the GIL is released.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = _PROTOTYPE(self.address(name))
        return function

    def llvm_ir(self) -> str:
        with _llvm():
            return str(_parse(self._texts, self.target))

    def object_bytes(self) -> bytes:
        """Return the relocatable object that was loaded."""
        return self._object

    def assembly(self) -> str:
        """Return the assembly, compiling it again."""
        return emit_assembly(self._texts, self.target)


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
        _jit = _binding().create_lljit_compiler(use_jit_link=not WINDOWS)
    return _jit, f"skforge.{number}"


def compile_functions(
    sources: Sequence[str | lir.Function],
    target: Target,
    symbols: Mapping[str, int] | None = None,
) -> JitModule:
    """Compile kernels, or LLVM modules as text, into this process.

    ``symbols`` are the addresses of functions that the text declares; others are looked
    up in this process. Addresses are kept out of the text so that other processes find
    its object in the cache.
    """
    target.check_runs_here()
    texts, names = _texts(sources, target)
    with _llvm() as binding:
        key = object_cache.key_of((*code_facts(target), *texts))
        binary = object_cache.find(key)
        if binary is not None:
            # If a valid digest covers a damaged object, it is compiled again.
            with suppress(CompilerError):
                loaded = _load(binding, names, binary, symbols or {})
                return JitModule(target, names, texts, binary, loaded)
        binary = _object(texts, target)
        object_cache.store(key, binary)
        loaded = _load(binding, names, binary, symbols or {})
        return JitModule(target, names, texts, binary, loaded)


def _load(
    binding: Any, names: Sequence[str], binary: bytes, symbols: Mapping[str, int]
) -> Any:
    """Load an object; return the owner of its addresses. Call with the lock held."""
    builder = binding.JITLibraryBuilder().add_object_img(binary)
    builder.add_current_process()
    for name, address in symbols.items():
        builder.import_symbol(name, address)
    for name in names:
        builder.export_symbol(name)
    try:
        return builder.link(*_next_library())
    except RuntimeError as error:
        raise CompilerError(
            f"LLVM cannot load {', '.join(map(repr, names))}: {str(error).strip()}"
        ) from error


Sources: TypeAlias = str | lir.Function | Sequence[str | lir.Function]


def emit_object(sources: Sources, target: Target) -> bytes:
    """Return a relocatable object of one or several modules for any CPU target."""
    with _llvm():
        return _object(_texts(_several(sources), target)[0], target)


def emit_assembly(sources: Sources, target: Target) -> str:
    with _llvm():
        module = _parse(_texts(_several(sources), target)[0], target)
        return str(_target_machine(target).emit_assembly(module))


def _several(sources: Sources) -> Sequence[str | lir.Function]:
    return [sources] if isinstance(sources, (str, lir.Function)) else sources


def load_module(binary: bytes, names: Sequence[str], target: Target) -> JitModule:
    """Load an object that has no text, into this process."""
    target.check_runs_here()
    return JitModule(target, names, (), binary, load_object(binary, names))


def machine_attributes(target: Target) -> tuple[str, str]:
    """Return the CPU and the features that functions for a target are compiled with."""
    options = _machine_options(target)
    return str(options["cpu"]), str(options["features"])


def load_object(binary: bytes, names: Sequence[str]) -> Any:
    """Load an object into this process; return an object that owns its addresses."""
    with _llvm() as binding:
        return _load(binding, names, binary, {})
