"""Link an exported library, and pack it as a wheel that uses ctypes, not skforge."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import keyword
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import resources
from pathlib import Path

from skforge.compiler.system import MACOS
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, TargetError
from skforge.exporters.contents import RETURNED, Library
from skforge.exporters.llvm_wrapper import WORDS
from skforge.runtime.facts import WINDOWS
from skforge.runtime.mappings import MappingColumns
from skforge.runtime.records import plain_out

_SECONDS = 120


def link_shared(binary: bytes, file: str, target: Target, libm: bool) -> bytes:
    """Link one object to a shared library, ``file`` its soname, and return its bytes.

    Raises :class:`TargetError` if linking fails, or no linker is there.
    """
    if ("apple" in target.triple) != (sys.platform == "darwin"):
        raise TargetError(
            f"Libraries for {target.triple} are linked on that system; use "
            "kind='object', and link it there, on macOS with cc -shared."
        )
    commands = _commands(target, file, libm)
    if not commands:
        wanted = ", ".join(_drivers(target))
        raise TargetError(
            f"No linker for {target.arch} was found (looked for {wanted} and ld.lld). "
            "Install one, or use kind='object', which needs none."
        )
    problems = []
    with tempfile.TemporaryDirectory(prefix="skforge-link-") as tmp:
        (Path(tmp) / "library.o").write_bytes(binary)
        for command in commands:
            try:
                done = subprocess.run(
                    command, cwd=tmp, capture_output=True, timeout=_SECONDS, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                problems.append(f"{command[0]}: {error}")
                continue
            if done.returncode == 0:
                return (Path(tmp) / file).read_bytes()
            said = done.stderr.decode(errors="replace").strip()[-500:]
            problems.append(f"{command[0]}: {said}")
    raise TargetError("The linker failed; use kind='object'. " + "; ".join(problems))


def _drivers(target: Target) -> list[str]:
    if "windows" in target.triple and not WINDOWS:
        return [f"{target.arch}-w64-mingw32-gcc"]
    if target.arch == Target.host().arch:
        return [*filter(None, [os.environ.get("CC")]), "cc", "gcc", "clang"]
    return [f"{target.arch}-linux-gnu-gcc"]


def _windows_commands(target: Target, file: str) -> list[list[str]]:
    """Return commands that take the C library's functions from ucrtbase.dll.

    Without start-up code a library needs no other one.
    """
    last = ["-o", file, "library.o", "-lucrtbase", "-lgcc"]
    flags = ["-shared", "-nostdlib", "-Wl,-e,0", *last]
    commands = [[driver, *flags] for driver in filter(shutil.which, _drivers(target))]
    flags = ["/nologo", "/dll", "/noentry", f"/out:{file}", "library.o", "ucrt.lib"]
    flags += ["vcruntime.lib", "msvcrt.lib", "/alternatename:___chkstk_ms=__chkstk"]
    return [*commands, *([t, *flags] for t in ("lld-link", "link") if WINDOWS)]


def _commands(target: Target, file: str, libm: bool) -> list[list[str]]:
    """Return the commands to try, compiler drivers first: they know where libm is.

    A library that needs no libm, or is linked by lld, leaves the C library to the
    program that loads it: no symbol has a version of glibc, so musl's do as well.
    """
    apple = "apple" in target.triple
    if "windows" in target.triple:
        return _windows_commands(target, file)
    name = ["-install_name", f"@rpath/{file}"] if apple else ["-soname", file]
    safe = [] if apple else ["-z", "noexecstack", "-z", "relro", "-z", "now"]
    flags = [*name, *safe, *([] if apple else ["--as-needed"])]
    files = ["-o", file, "library.o"]
    commands = []
    for driver in _drivers(target):
        words = shlex.split(driver)
        if words and shutil.which(words[0]):
            passed = [f"-Wl,{flag}" for flag in flags]
            first = [f"-mmacosx-version-min={MACOS}"] if apple else []
            last = "-lm" if libm or apple else "-nostdlib"
            commands.append([*words, *first, "-shared", *passed, *files, last])
            break
    if not apple and shutil.which("ld.lld"):
        machine = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}[target.arch]
        commands.append(["ld.lld", "-m", machine, "-shared", *flags, *files])
    return commands


_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents, equal bytes

#: A version in the normal form of PEP 440.
_VERSION = re.compile(
    r"([1-9][0-9]*!)?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*((a|b|rc)(0|[1-9][0-9]*))?"
    r"(\.post(0|[1-9][0-9]*))?(\.dev(0|[1-9][0-9]*))?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)


#: The files of skforge that wheels ship; they need NumPy alone.
_RUNTIME = (
    *("_typing", "runtime/categories", "exceptions", "runtime/mappings"),
    *("runtime/mapping_values", "runtime/python_objects", "runtime/records"),
)


def check_package(name: str, version: str | None) -> str:
    taken = keyword.iskeyword(name) or name in ("numpy", "skforge")
    if taken or name in sys.stdlib_module_names:
        raise InvalidInputError(
            f"name={name!r} is a Python keyword or the name of a module that Python "
            "or the wheel needs; choose another name."
        )
    version = "1.0.0" if version is None else version
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise InvalidInputError(
            "version must be the version of a Python package, such as '1.2.0' or "
            f"'2.0rc1+prod'. Got {version!r} instead."
        )
    return version


def wheel(
    library: Library,
    version: str,
    target: Target,
    file: str,
    binary: bytes,
    metadata: bytes,
    columns: MappingColumns | str | None,
) -> tuple[str, bytes]:
    """Return the name and the bytes of a wheel with a shared library.

    Its platform tag is that of the C library the linker used. ``metadata`` holds the
    library's facts as JSON, and ``columns`` tell how mappings and frames are read.
    """
    if not re.search("linux|apple|windows", target.triple):
        raise TargetError(
            f"Wheels are made for Linux, macOS and Windows, not for {target.triple}; "
            "use kind='shared'."
        )
    name, tag = library.name, f"py3-none-{platform_tag(binary, target, library.libm)}"
    distribution = re.sub("_+", "_", name).strip("_").lower()
    base = f"{distribution}-{version}"
    info = f"{base}.dist-info"
    files = {
        f"{name}/__init__.py": _module(library, version, file).encode(),
        f"{name}/py.typed": b"",
        f"{name}/{file}": binary,
        f"{name}/{name}.json": metadata,
        f"{name}/columns.json": json.dumps(plain_out(columns)).encode(),
        f"{name}/_runtime/__init__.py": b"",
    }
    for part in _RUNTIME:
        text = resources.files("skforge").joinpath(f"{part}.py").read_text("utf-8")
        text = re.sub(r"from skforge\.(runtime\.)?", "from .", text)
        # users' own settings of mypy would be applied to it
        text = f"# mypy: ignore-errors\n{text}"
        files[f"{name}/_runtime/{part.rpartition('/')[2]}.py"] = text.encode()
    tags = "\nTag: py3-none-".join(tag.split("."))
    facts = {"name": distribution, "version": version, "tags": tags}
    for file_name in ("METADATA", "WHEEL"):
        files[f"{info}/{file_name}"] = library.filled(file_name, **facts).encode()
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        record += f"{path},sha256={digest.rstrip(b'=').decode()},{len(data)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return f"{base}-{tag}.whl", buffer.getvalue()


def platform_tag(binary: bytes, target: Target, libm: bool) -> str:
    """Return the tag of the newest glibc symbol version; without any, also of musl."""
    if "apple" in target.triple:
        arch = "arm64" if target.arch == "aarch64" else target.arch
        return f"macosx_{MACOS.replace('.', '_')}_{arch}"
    if "windows" in target.triple:
        return "win_amd64"
    versions = re.findall(rb"GLIBC_2\.(\d+)", binary)
    if not versions and libm:  # lld does not write them
        return f"linux_{target.arch}"
    # 2.17 is the oldest glibc that PEP 599's successors tag for every architecture.
    tag = f"manylinux_2_{max([17, *map(int, versions)])}_{target.arch}"
    return tag if versions else f"{tag}.musllinux_1_1_{target.arch}"


def _module(library: Library, version: str, file: str) -> str:
    forest = library.forest
    facts = {"version": version, "file": file, "words": WORDS}
    categories = tuple(library.categories)
    facts["lists"] = " | Sequence[Sequence[Any]]" if categories else ""
    offered = ["N_FEATURES", "checksum", *library.results]
    facts |= {"entries": (*library.outputs,), "offered": offered}
    text = library.filled("package.txt", **facts)
    if categories:
        known = {"categories": categories, "names": forest.column_names}
        text += library.filled("package_encoded.txt", **known)
    encode = "    X = _encoded(X)\n" if categories else ""
    for function, (dtype, columns) in library.results.items():
        shape, given = "", f"(n, {columns})" if columns != 1 else "(n,)"
        if function == "predict_contribs" and forest.n_outputs > 1:
            parts = f"{forest.n_outputs}, {forest.n_features + 1}"
            shape, given = f".reshape(-1, {parts})", f"(n, {parts})"
        how = {"function": function, "dtype": dtype, "columns": columns}
        how |= {"shape": shape, "given": given, "what": RETURNED[function]}
        text += library.filled("package_function.txt", encode=encode, **how)
    return text
