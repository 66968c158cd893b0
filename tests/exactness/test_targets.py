"""The same bits from code for every x86-64 level; object code for aarch64."""

from __future__ import annotations

import re

import pytest

from skforge.compiler.target import Target
from tests.exactness.checks import check_exact, cpu, emitted
from tests.exactness.families import FAMILIES
from tests.exactness.forests import forest

KINDS = ("multiclass", "double extremes", "categories", "vector 10", "zero missing")


@pytest.mark.sampled(18)
@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize(
    "name", [*KINDS, "mixed trees", "any missing", "vector 3", "averaged"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_x86_64_levels(family: str, name: str, level: str) -> None:
    check_exact(name, FAMILIES[family], target=cpu(level), batches=(1, 3, 65))


@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
def test_no_instruction_of_a_higher_level(level: str) -> None:
    """Registers that a level does not have appear nowhere in its code."""
    text, _ = emitted(forest("scalar"), FAMILIES["vectorize"], Target.x86_64(level))
    widest = {
        name: bool(re.search(rf"%{name}\d", text)) for name in ("xmm", "ymm", "zmm")
    }
    assert widest["xmm"]
    if level == "v2":
        assert not widest["ymm"]
    if level != "v4":
        assert not widest["zmm"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_aarch64_code_is_emitted(family: str) -> None:
    for name in (KINDS[list(FAMILIES).index(family) % len(KINDS)], "mixed trees"):
        text, code = emitted(forest(name), FAMILIES[family], Target.aarch64())
        assert re.search(r"^predict:$", text, re.MULTILINE)
        assert re.search(r"^\tret$", text, re.MULTILINE)
        # an ELF file for machine 183, AArch64
        assert code[:4] == b"\x7fELF"
        assert int.from_bytes(code[18:20], "little") == 183
