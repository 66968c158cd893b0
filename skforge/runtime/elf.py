"""Links an object into this process: ELF of x86-64 or Arm, as our own code is emitted.

LLVM's linker does the same for every format, but importing LLVM takes 50 ms and 40 MiB.
What this one does not know, it refuses, and LLVM's is used. Code and constants are
written first, and then made executable and read-only; data that code writes has pages
of its own. Functions outside are called through stubs, as they may be far away::

    code and constants | a stub for each symbol outside | data that code writes
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from skforge.exceptions import CompilerError
from skforge.runtime.facts import machine

_SECTION, _SYMBOL, _RELOCATION = map(struct.Struct, ("<IIQQQQIIQQ", "<IBBHQQ", "<QQq"))
#: Kinds of sections: with contents, symbols, relocations, zeros.
_CONTENTS, _SYMBOLS, _RELOCATIONS, _ZEROS = 1, 2, 4, 8
#: Flags of sections: code writes it, it is loaded, each thread has its own.
_WRITTEN, _LOADED, _OF_THREADS = 1, 2, 0x400
#: The last kind of symbols that have a place; later ones are threads' or computed.
_FILE = 4
#: Kinds of relocations: an address, a distance, the distance to where an address is; of
#: Arm alone, branches, pages, and places in pages with the bits that are not stored.
_ADDRESS, _DISTANCE, _TO_ADDRESS = (1, 257), (2, 4, 261), (9, 41, 42, 311, 312)
_BRANCH, _PAGE = (282, 283), (275, 311)
_IN_PAGE = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}
#: A stub: ``jmp [rip + 2]`` and two bytes, or ``ldr x16, .+8; br x16``; the address.
_STUB, _ADDRESS_AT = struct.Struct("<8sQ"), 8
_X86, _ARM = (62, b"\xff\x25\x02\0\0\0\0\0"), (183, b"\x50\0\0\x58\0\x02\x1f\xd6")
_MACHINE, _JUMP = _ARM if machine() == "aarch64" else _X86
_LINE = 64


Section: TypeAlias = tuple[int, ...]


class LinkError(Exception):
    """An object that this linker does not know, or memory that it does not get."""


class Image(dict[str, int]):
    """The addresses of an object's symbols, which are valid while this lives."""

    memory: mmap.mmap


def link(binary: bytes, external: Mapping[str, int]) -> Image:
    """Link an object; raise ``LinkError`` if it has to be left to LLVM's linker.

    ``external`` has addresses of functions that the object does not define; others are
    looked up in this process. Where no memory may be executed, neither links, and
    ``CompilerError`` says so.
    """
    if sys.platform != "linux":
        raise LinkError("memory is mapped as Linux does")
    try:
        return _linked(binary, external)
    except (struct.error, LookupError, OverflowError, ValueError, OSError) as error:
        raise LinkError(str(error)) from error


def _linked(binary: bytes, external: Mapping[str, int]) -> Image:
    sections, symbols = _tables(binary)
    foreign = [name for name, section, _ in symbols if name and not section]
    places: dict[int, int] = {}
    end = _up(_allot(sections, 0, 0, places), _STUB.size)
    stubs = {name: end + k * _STUB.size for k, name in enumerate(foreign)}
    fixed = _up(end + len(stubs) * _STUB.size, mmap.PAGESIZE)
    size = _allot(sections, _WRITTEN, fixed, places)
    memory, base = _mapped(size)
    for i, at in places.items():
        _, kind, _, _, offset, length, *_ = sections[i]
        if kind == _CONTENTS:
            memory[at : at + length] = binary[offset : offset + length]
    for name, at in stubs.items():
        _STUB.pack_into(memory, at, _JUMP, external.get(name) or _address(name))
    for section in sections:
        if section[1] == _RELOCATIONS and section[7] in places:
            start = places[section[7]]
            for offset, info, addend in _entries(_RELOCATION, binary, section):
                name, of, value = symbols[info >> 32]
                kind, at = info & 0xFFFFFFFF, start + offset
                target = places[of] + value if of else stubs[name]
                _relocate(memory, base, kind, at, target + addend, not of)
    _make_executable(base, fixed)
    image = Image(
        (name, base + places[of] + at) for name, of, at in symbols if of in places
    )
    image.memory = memory
    return image


def _relocate(
    memory: mmap.mmap, base: int, kind: int, at: int, target: int, by_stub: bool
) -> None:
    if kind in _ADDRESS and not by_stub:
        struct.pack_into("<Q", memory, at, base + target)
    elif kind in _TO_ADDRESS and by_stub:
        _write(memory, kind, at, target + _ADDRESS_AT)
    elif kind in _DISTANCE + _BRANCH or not (by_stub or kind in _TO_ADDRESS):
        _write(memory, kind, at, target)
    else:
        raise ValueError(f"a relocation of kind {kind}")


def check_executable() -> None:
    """Raise ``CompilerError`` where LLVM's linker would end the process."""
    if hasattr(mmap, "PROT_EXEC"):
        memory, base = _mapped(mmap.PAGESIZE)
        _make_executable(base, len(memory))


def _mapped(size: int) -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _make_executable(base: int, size: int) -> None:
    pages = ctypes.c_void_p(base), ctypes.c_size_t(size)
    # A CDLL made anew takes 20 µs. Linux lets Arm's cache of instructions follow here,
    # since no page was executable before.
    if ctypes.pythonapi.mprotect(*pages, mmap.PROT_READ | mmap.PROT_EXEC):
        raise CompilerError(
            "The system refuses executable memory to this process, as "
            "MemoryDenyWriteExecute of systemd, SELinux without execmem and macOS's "
            "hardened runtime without allow-unsigned-executable-memory do. Allow it, "
            "or serve a library or wheel that skforge.export made."
        )


def _write(memory: mmap.mmap, kind: int, at: int, to: int) -> None:
    (word,) = struct.unpack_from("<I", memory, at)
    far, bits, rest = to - at, 32, 0
    if kind in _BRANCH:
        far, bits, rest = far >> 2, 26, far & 3
        word |= far & 0x3FFFFFF
    elif kind in _PAGE:
        far, bits = (to >> 12) - (at >> 12), 21
        word |= (far & 3) << 29 | (far >> 2 & 0x7FFFF) << 5
    elif kind in _DISTANCE or (kind in _TO_ADDRESS and kind != 312):
        word = far & 0xFFFFFFFF
    else:
        far, rest = 0, to & (1 << _IN_PAGE[kind]) - 1  # KeyError: it is not known
        word |= (to & 0xFFF) >> _IN_PAGE[kind] << 10
    if rest or far >> bits - 1 not in (0, -1):
        raise ValueError(f"a relocation of kind {kind} cannot reach its place")
    struct.pack_into("<I", memory, at, word)


def _tables(binary: bytes) -> tuple[list[Section], list[tuple[str, int, int]]]:
    if struct.unpack_from("<7s9xHH", binary) != (b"\x7fELF\2\1\1", 1, _MACHINE):
        raise ValueError("no object of 64 bits for this machine")
    (first,) = struct.unpack_from("<Q", binary, 40)
    size, count = struct.unpack_from("<HH", binary, 58)
    at = range(first, first + count * size, size)
    sections = [_SECTION.unpack_from(binary, place) for place in at]
    (table,) = (section for section in sections if section[1] == _SYMBOLS)
    names, symbols = sections[table[6]][4], []
    for name, info, _, section, value, _ in _entries(_SYMBOL, binary, table):
        if info & 15 > _FILE:
            raise ValueError(f"a symbol of kind {info & 15}")
        end = binary.index(b"\0", names + name)
        symbols.append((binary[names + name : end].decode(), section, value))
    return sections, symbols


def _entries(form: struct.Struct, binary: bytes, table: Section) -> Iterator[Any]:
    return form.iter_unpack(binary[table[4] : table[4] + table[5]])


def _allot(
    sections: list[Section], written: int, end: int, starts: dict[int, int]
) -> int:
    for i, (_, kind, flags, _, _, size, _, _, align, _) in enumerate(sections):
        if flags & _LOADED and flags & _WRITTEN == written:
            known = kind in (_CONTENTS, _ZEROS) and not flags & _OF_THREADS
            if not known or align > mmap.PAGESIZE:
                raise ValueError(f"a section of kind {kind} with flags {flags}")
            starts[i] = _up(end, max(align, _LINE))
            end = starts[i] + size
    return end


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _address(name: str) -> int:
    function = getattr(ctypes.pythonapi, name, None)
    if function is None:
        raise LookupError(f"no symbol {name!r}")
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
