"""Compiled GPU code, kept in the object cache.

The key is the text's digest, the architecture, and the compiler's version and options.
"""

from __future__ import annotations

from skforge.compiler.runtime import object_cache
from skforge.compiler.runtime.gpu import compilers as gpu_compilers
from skforge.compiler.runtime.gpu.compilers import Kind
from skforge.compiler.runtime.gpu.resources import (
    KernelResources,
    cubin_resources,
    hip_resources,
)

#: Changes whenever the compilers' options do.
_FORMAT = "1"


def code_of(source: str, arch: str, kind: Kind) -> bytes:
    """Return the cubin or code object for a text."""
    version = gpu_compilers.compiler_version(kind)
    key = object_cache.key_of(("gpu", _FORMAT, kind, arch, version, source))
    found = object_cache.find(key)
    if found is None:
        found, _ = gpu_compilers.compile_text(source, arch, kind)
        object_cache.store(key, found)
    return found


def resources_of(source: str, arch: str, kind: Kind) -> dict[str, KernelResources]:
    """Return the resources of a text's kernels, from the code that would be loaded."""
    code = code_of(source, arch, kind)
    return cubin_resources(code) if kind == "cuda" else hip_resources(code)
