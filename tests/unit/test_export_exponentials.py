"""Exported libraries have an exp of their own where the C library's bits are known."""

from __future__ import annotations

import platform

import pytest

from skforge.compiler.target import Target
from skforge.exporters import library

HOST = Target.host()
#: glibc's own code has other bits on CPUs without fused additions.
FUSED = HOST.arch != "x86_64" or "fma" in HOST.enabled


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not FUSED, reason="not glibc")
def test_the_exp_of_glibc_is_known() -> None:
    assert library._knows_exp()
