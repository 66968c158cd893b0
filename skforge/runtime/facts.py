"""What this process runs on, found without the packages that know it, slow to import.

joblib takes 60 ms, and llvmlite 50.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from skforge.exceptions import CompilerError
from skforge.runtime import object_cache

#: What tells CPUs apart, in the words of Linux for x86-64 and for aarch64.
_OF_A_CPU = (
    *("vendor_id", "cpu family", "model", "stepping", "flags"),
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision", "Features"),
)


WINDOWS = sys.platform == "win32"


def c_address(name: str) -> int:
    library = ctypes.CDLL("ucrtbase" if WINDOWS else None)
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


def read_text(*path: str) -> str:
    """Return the text of a file; ``pathlib`` takes 5 ms to import."""
    with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
        return file.read()


def machine() -> str:
    return os.uname().machine if hasattr(os, "uname") else ""


def cpu_facts(file: str = "/proc/cpuinfo") -> str:
    with suppress(OSError), open(file, encoding="utf-8", errors="replace") as lines:
        facts = []
        for line in lines:
            name, _, value = line.partition(":")
            if not value:
                break
            if name.strip() in _OF_A_CPU:
                facts.append(line)
        return "".join(facts)
    return ""


@lru_cache(maxsize=1)
def has_avx512() -> bool:
    return "avx512f" in cpu_facts().split()


def cpu_count(cgroup: str = "/sys/fs/cgroup") -> int:
    if sys.platform != "linux" or "JOBLIB_MULTIPROCESSING" in os.environ:
        import joblib

        return int(joblib.cpu_count())
    cores = os.cpu_count() or 1
    asked = int(os.environ.get("LOKY_MAX_CPU_COUNT", cores))
    may = min(cores, len(os.sched_getaffinity(0)), asked, _quota(cgroup) or cores)
    return max(1, may)


def _quota(cgroup: str) -> int | None:
    version_1 = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"
    for names in (("cpu.max",), version_1):
        with suppress(FileNotFoundError):
            words = " ".join(read_text(cgroup, name) for name in names).split()
            if len(words) == 2:
                limits = words[0] != "max" and int(words[0]) > 0 and int(words[1]) > 0
                return math.ceil(int(words[0]) / int(words[1])) if limits else None
    return None


@lru_cache(maxsize=1)
def llvm_version() -> str:
    """Return what tells versions of llvmlite apart, which has its LLVM inside.

    A process may have none, and a cache that was filled where there is one.
    """
    spec = find_spec("llvmlite")
    if spec is None:
        noted = object_cache.find(_LLVMLITE)
        return "" if noted is None else noted.decode()
    for folder in spec.submodule_search_locations or ():
        with suppress(OSError):
            return read_text(folder, "_version.py")
    return ".".join(map(str, llvmlite().llvm_version_info))


#: The key under which the cache has the version of llvmlite that filled it.
_LLVMLITE = object_cache.key_of(("llvmlite",))


def note_llvm_version() -> None:
    object_cache.store(_LLVMLITE, llvm_version().encode())


def llvmlite() -> Any:
    try:
        from llvmlite import binding
    except ImportError as error:
        if object_cache.hides_entries():
            raise CompilerError(
                f"the cache ({object_cache.directory()}) has entries that this user "
                "may not read, and llvmlite is not installed, which compiles what the "
                "cache lacks. Run skforge warm --shared as the user who fills the "
                "cache, or install llvmlite."
            ) from error
        raise CompilerError(
            f"the cache ({object_cache.directory()}) has no machine code for this "
            "model, batch size, CPU and release of Python, NumPy and skforge, and "
            "llvmlite is not installed, which compiles it. Install llvmlite, or fill "
            "the cache on such a machine with skforge warm."
        ) from error
    return binding
