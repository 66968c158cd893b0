"""Compiles LLVM IR text to objects, for this process or for another machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeAlias

from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode, code_facts, machine_options
from skforge.exceptions import CompilerError
from skforge.runtime import object_cache
from skforge.runtime.loading import llvm, llvm_binding

#: A module's text, or a function that becomes one.
JitSource: TypeAlias = str | lir.Function
Sources: TypeAlias = JitSource | Sequence[JitSource]

# Looked for as plain text up to the space: 14 times as fast as ^ with MULTILINE.
_DEFINED = re.compile(r'\ndefine \w+ @("[^"]*"|[^\s(]+)\(')


@lru_cache(maxsize=16)
def _target_machine(target: Target) -> Any:
    binding = llvm_binding()
    # No middle-end passes: on interleaved walks they cost 30-130 ms and gained nothing
    # (0-4 %, at times -25 %), and SLP vectorisation made the walks 3 times slower.
    try:
        backend = binding.Target.from_triple(target.triple)
        return backend.create_target_machine(**machine_options(target))
    except RuntimeError as error:
        raise CompilerError(
            f"LLVM cannot compile for {target.triple}: {error}; choose another target."
        ) from error


def _names(text: str) -> list[str]:
    return [name.strip('"') for name in _DEFINED.findall("\n" + text)]


def _texts(sources: Sources, target: Target) -> tuple[list[str], list[str]]:
    several = [sources] if isinstance(sources, (str, lir.Function)) else sources
    texts = [s if isinstance(s, str) else emit_llvm(s, target) for s in several]
    return texts, [name for text in texts for name in _names(text)]


def _parse(texts: Sequence[str], target: Target) -> Any:
    binding, machine = llvm_binding(), _target_machine(target)
    whole: Any = None
    for text in texts:
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
            names = ", ".join(map(repr, _names(text)))
            raise CompilerError(
                f"LLVM refuses {names or 'a module'}: {str(error).strip()}"
            ) from error
    if whole is None:
        raise CompilerError("There is no function to compile.")
    coff = re.search("windows(?!.*-elf)", target.triple)
    for symbol in (*whole.functions, *whole.global_variables):
        # What modules hide is known to each other, and to nobody when they are linked.
        if symbol.visibility.name == "hidden" and not symbol.is_declaration:
            symbol.linkage = "internal"
        elif coff and symbol.linkage.name == "external" and "llvm." not in symbol.name:
            # MinGW has an exp of its own; imported is what the C library's DLL has.
            kind = "dllimport" if symbol.is_declaration else "dllexport"
            symbol.storage_class = kind
    return whole


def compile_functions(sources: Sequence[JitSource], target: Target) -> MachineCode:
    """Compile kernels, or LLVM modules as text, into this process."""
    target.check_runs_here()
    texts, names = _texts(sources, target)
    key = object_cache.key_of((*code_facts(target), *texts))
    binary = object_cache.find(key)
    if binary is not None:
        # If a valid digest covers a damaged object, it is compiled again.
        with suppress(CompilerError):
            return MachineCode(names, binary, target)
    binary = emit_object(texts, target)
    object_cache.store(key, binary)
    return MachineCode(names, binary, target)


def object_of(sources: Sources, target: Target) -> tuple[list[str], bytes]:
    texts, names = _texts(sources, target)
    with llvm():
        return names, bytes(_target_machine(target).emit_object(_parse(texts, target)))


def emit_object(sources: Sources, target: Target) -> bytes:
    return object_of(sources, target)[1]


def emit_assembly(sources: Sources, target: Target) -> str:
    with llvm():
        module = _parse(_texts(sources, target)[0], target)
        return str(_target_machine(target).emit_assembly(module))


def emit_ir(sources: Sources, target: Target) -> str:
    with llvm():
        return str(_parse(_texts(sources, target)[0], target))


def machine_attributes(target: Target) -> tuple[str, str]:
    options = machine_options(target)
    return str(options["cpu"]), str(options["features"])
