"""LLVM IR text to machine code in this process, or to objects for another machine.

Text is parsed, verified and compiled to an object by a target machine, and the object
is loaded by ORC's LLJIT. Every use of LLVM is under one lock, which a fork waits for:
without that a child forked during a compilation would hang on its first own one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import struct
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from skforge._version import __version__
from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.codegen.llvm.pools import RELEASE
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.runtime import object_cache
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError

_LOCK = threading.RLock()
_LIBRARY_NUMBERS = itertools.count()
_DEFINED = re.compile(r'^define (?:void|ptr) @("[^"]*"|[^\s(]+)\(', re.MULTILINE)
# What a kernel looks like to ctypes; a CFUNCTYPE call releases the GIL.
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)


@contextmanager
def _llvm() -> Iterator[Any]:
    """Hold the lock, and give llvmlite's binding with every target initialised."""
    with _LOCK:
        yield _binding()


@lru_cache(maxsize=1)
def _binding() -> Any:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()
    # llvmlite has a lock of its own. Holding both over a fork gives the child two free
    # locks, since whoever held them has left LLVM by then.
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
    """Return the machine that compiles for a target; use under the lock."""
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
        # LLVM takes AVX2's gathers to be slow and writes branches for masked ones: a
        # vector walk took 1.18 µs a row and 69 ms to compile, against 0.89 and 14 so.
        features += ",+fast-gather"
    return {
        "cpu": target.cpu,
        "features": features,
        "opt": 2,
        "reloc": "pic",
        "codemodel": "small",
    }


def _names(text: str) -> list[str]:
    return [name.strip('"') for name in _DEFINED.findall(text)]


def _slot_codes(function: lir.Function) -> str:
    return "".join(
        "d" if isinstance(p, lir.Value) and p.type.element.is_float else "q"
        for p in function.params
    )


def _texts(
    sources: Sequence[str | lir.Function], target: Target
) -> tuple[tuple[str, ...], dict[str, str | None]]:
    """Return the sources as LLVM text, and the slot codes of their kernels."""
    texts = []
    kernels: dict[str, str | None] = {}
    for source in sources:
        text = source if isinstance(source, str) else emit_llvm(source, target)
        texts.append(text)
        names = _names(text)
        if isinstance(source, str):
            kernels |= dict.fromkeys(names)
        else:
            kernels[source.name] = _slot_codes(source)
            kernels |= {name: "" for name in names if name.endswith(RELEASE)}
    return tuple(texts), kernels


def _parse(texts: Sequence[str], target: Target) -> Any:
    """Return one verified module of all texts; use under the lock."""
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
    return whole


def _object_key(texts: Sequence[str], target: Target) -> str:
    """Return a digest of everything that machine code depends on."""
    binding = _binding()
    facts = (
        __version__,
        ".".join(map(str, binding.llvm_version_info)),
        target.triple,
        *(f"{name}={value}" for name, value in _machine_options(target).items()),
    )
    return object_cache.key_of((*facts, *texts))


def _object(texts: Sequence[str], target: Target) -> bytes:
    """Return the relocatable object of some texts; use under the lock."""
    return bytes(_target_machine(target).emit_object(_parse(texts, target)))


_RELEASE_PROTOTYPE = ctypes.CFUNCTYPE(None)


def _release(functions: Sequence[Any], loaded: Any) -> None:
    """Free the scratch a module's kernels keep."""
    for function in functions:
        function()
    del loaded


class JitModule:
    """Machine code in this process; it lives as long as this object.

    Attributes
    ----------
    names : tuple of str
        The kernels, as ``address`` and ``call`` know them.
    target : Target
        What the code was compiled for.
    """

    def __init__(
        self,
        target: Target,
        slot_codes: Mapping[str, str | None],
        texts: Sequence[str],
        binary: bytes,
        loaded: Any,
    ) -> None:
        self.names = tuple(n for n in slot_codes if not n.endswith(RELEASE))
        self.target = target
        self._texts = tuple(texts)
        self._object = binary
        self._loaded = loaded  # LLVM's resource tracker; the code goes with it
        self._slot_codes = dict(slot_codes)
        self._functions: dict[str, Any] = {}
        releases = [
            _RELEASE_PROTOTYPE(int(loaded[name]))
            for name in slot_codes
            if name.endswith(RELEASE)
        ]
        if releases:
            # The code that frees the scratch has to be there until it has done so.
            end = weakref.finalize(self, _release, releases, loaded)
            end.atexit = False

    def address(self, name: str) -> int:
        """Return the address of a kernel."""
        if name not in self.names:
            raise CompilerError(
                f"No kernel {name!r} in this module; it has {', '.join(self.names)}."
            )
        return int(self._loaded[name])

    def function(self, name: str) -> Any:
        """Return a kernel as a ctypes function (slots, pfor address, threads).

        ``slots`` is a bytes object or the address of the array; the GIL is released.
        """
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = _PROTOTYPE(self.address(name))
        return found

    def slot_codes(self, name: str) -> str | None:
        """Return the struct codes of a kernel's slots, if it was compiled from LIR."""
        return self._slot_codes[name]

    def llvm_ir(self) -> str:
        """Return the IR that was compiled."""
        with _llvm():
            return str(_parse(self._texts, self.target))

    def object_bytes(self) -> bytes:
        """Return the relocatable object that was loaded."""
        return self._object

    def assembly(self) -> str:
        """Return the assembly; it is compiled anew."""
        with _llvm():
            module = _parse(self._texts, self.target)
            return str(_target_machine(self.target).emit_assembly(module))


#: Libraries loaded into one LLJIT. Of each it keeps 9 KB until it goes itself, which
#: it does with the last of its modules; 160 KB is what it takes.
_LIBRARIES = 32

_jit: Any = None


def _next_library() -> tuple[Any, str]:
    """Return an LLJIT and the name of the next library in it; use under the lock."""
    global _jit
    number = next(_LIBRARY_NUMBERS)
    if _jit is None or number % _LIBRARIES == 0:
        # RuntimeDyld places code and constants apart, and aborts the process where that
        # is by more than 2 GB; JITLink takes one stretch for an object.
        _jit = _binding().create_lljit_compiler(use_jit_link=sys.platform != "win32")
    return _jit, f"skforge.{number}"


def compile_functions(
    sources: Sequence[str | lir.Function],
    target: Target,
    symbols: Mapping[str, int] | None = None,
) -> JitModule:
    """Compile kernels into this process.

    Parameters
    ----------
    sources : sequence of str or lir.Function
        Kernels, or LLVM modules as text.
    target : Target
        The host, or any CPU whose features the host has.
    symbols : mapping of str to int, optional
        Addresses of what the text declares; others are looked up in this process. A
        text with addresses in it would be of no use to the next process, which is to
        find its object in the cache.
    """
    target.check_runs_here()
    texts, names = _texts(sources, target)
    with _llvm() as binding:
        key = _object_key(texts, target)
        binary = object_cache.find(key)
        if binary is not None:
            # A right digest around junk: the object is compiled again, as a damaged one
            with suppress(CompilerError):
                return _load(binding, target, names, texts, binary, symbols or {})
        binary = _object(texts, target)
        object_cache.store(key, binary)
        return _load(binding, target, names, texts, binary, symbols or {})


def _load(
    binding: Any,
    target: Target,
    names: Mapping[str, str | None],
    texts: Sequence[str],
    binary: bytes,
    symbols: Mapping[str, int],
) -> JitModule:
    builder = binding.JITLibraryBuilder().add_object_img(binary)
    builder.add_current_process()
    for name, address in symbols.items():
        builder.import_symbol(name, address)
    for name in names:
        builder.export_symbol(name)
    try:
        loaded = builder.link(*_next_library())
    except RuntimeError as error:
        raise CompilerError(
            f"LLVM cannot load {', '.join(map(repr, names))}: {str(error).strip()}"
        ) from error
    return JitModule(target, names, texts, binary, loaded)


def emit_object(
    source: str | lir.Function | Sequence[str | lir.Function], target: Target
) -> bytes:
    """Return a relocatable object for any CPU target, of one or several modules."""
    sources = [source] if isinstance(source, (str, lir.Function)) else source
    with _llvm():
        return _object(_texts(sources, target)[0], target)


def machine_attributes(target: Target) -> tuple[str, str]:
    """Return the CPU and the features that a function for a target is compiled with."""
    options = _machine_options(target)
    return str(options["cpu"]), str(options["features"])


def load_object(binary: bytes, names: Sequence[str]) -> Any:
    """Return what maps names to addresses while it lives: an object in this process.

    Raises
    ------
    CompilerError
        If it is for another machine, or needs what is not there.
    """
    with _llvm() as binding:
        builder = binding.JITLibraryBuilder().add_object_img(binary)
        builder.add_current_process()
        for name in names:
            builder.export_symbol(name)
        try:
            return builder.link(*_next_library())
        except RuntimeError as error:
            raise CompilerError(f"LLVM cannot load it: {str(error).strip()}") from error


def emit_assembly(source: str | lir.Function, target: Target) -> str:
    """Return assembly text for any CPU target."""
    with _llvm():
        module = _parse(_texts([source], target)[0], target)
        return str(_target_machine(target).emit_assembly(module))


# ------------------------------------------------------------ calls


def pack_slots(slots: Sequence[Any], codes: str | None = None) -> bytes:
    """Return a kernel's arguments as bytes: ints as int64, floats as doubles.

    NumPy arrays stand for the address of their data; the caller keeps them alive.
    ``codes`` are the slots' struct codes; without them each slot's own type decides.
    """
    try:
        return struct.pack(codes or f"{len(slots)}q", *slots)
    except (struct.error, TypeError):
        pass  # there are arrays, floats of unknown place or too few slots
    values = [_slot(slot) for slot in slots]
    if codes is None:
        codes = "".join("d" if isinstance(value, float) else "q" for value in values)
    return struct.pack(codes, *values)


def _slot(slot: Any) -> int | float:
    if getattr(slot, "ndim", 0):
        return int(slot.ctypes.data)
    value: int | float = slot.item() if hasattr(slot, "item") else slot
    return value
