"""Exported libraries have an exp of their own where the C library's bits are known."""

from __future__ import annotations

import csv
import hashlib
import io
import platform
import zipfile
from base64 import urlsafe_b64decode
from email.parser import BytesParser

import pytest
from packaging.metadata import Metadata
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from skforge.compiler.target import Target
from skforge.exporters import library
from skforge.exporters.contents import Library
from skforge.exporters.library import outputs_of
from skforge.exporters.wheel import platform_tag, wheel
from tests.exactness.forests import forest

HOST = Target.host()
#: glibc's own code has other bits on CPUs without fused additions.
FUSED = HOST.arch != "x86_64" or "fma" in HOST.enabled


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not FUSED, reason="not glibc")
def test_the_exp_of_glibc_is_known() -> None:
    assert library._knows_exp()


# ------------------------------------------------------------ export wheel


TARGET = Target.x86_64("v2")


def test_installers_find_what_they_read() -> None:
    made = forest("scalar")
    library = Library("Tiny__Model", made, *outputs_of(made), apply=False, libm=False)
    name, content = wheel(library, "2.0rc1", TARGET, "libm.so", b"code", b"{}", None)
    distribution, version, _, tags = parse_wheel_filename(name)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {path: archive.read(path) for path in archive.namelist()}
    info = "tiny_model-2.0rc1.dist-info"
    facts = Metadata.from_email(files[f"{info}/METADATA"])
    assert (canonicalize_name(facts.name), facts.version) == (distribution, version)
    said = BytesParser().parsebytes(files[f"{info}/WHEEL"])
    assert {tag for text in said.get_all("Tag") for tag in parse_tag(text)} == tags
    own, record = f"{info}/RECORD", files[f"{info}/RECORD"].decode().splitlines()
    rows = {path: (digest, size) for path, digest, size in csv.reader(record)}
    assert rows.keys() == files.keys() and rows.pop(own) == ("", "")
    for path, (digest, size) in rows.items():
        kind, _, text = digest.partition("=")
        stored = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        assert (kind, stored) == ("sha256", hashlib.sha256(files[path]).digest())
        assert int(size) == len(files[path])


def test_the_tag_is_of_the_newest_symbol() -> None:
    assert platform_tag(b"\0GLIBC_2.2.5\0GLIBC_2.29\0GLIBC_2.4\0", TARGET, True) == (
        "manylinux_2_29_x86_64"
    )
    assert platform_tag(b"\0GLIBC_2.2.5\0", TARGET, True) == "manylinux_2_17_x86_64"
    assert platform_tag(b"\0", TARGET, True) == "linux_x86_64"
    assert platform_tag(b"\0", TARGET, False) == (
        "manylinux_2_17_x86_64.musllinux_1_1_x86_64"
    )
