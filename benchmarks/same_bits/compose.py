"""Write the scripts of ``cells/``: each trait, each converter that reads its library.

    python -m benchmarks.same_bits.compose

Scripts of one trait have the same model and the same rows, so they differ in nothing
but the converter; a test compares the files with what is written here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.same_bits.converters import CONVERTERS, Text
from benchmarks.same_bits.traits import TRAITS, Trait

CELLS = Path(__file__).with_name("cells")

#: Bits are those of float64: a converter may return another dtype, or another shape.
_COMPARE = """\
a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
"""


def cells() -> dict[str, str]:
    return {
        f"{name}__{converter}": _script(trait, converter, text)
        for name, trait in TRAITS.items()
        for converter, read in CONVERTERS.items()
        if (not trait.release or converter == "onnxruntime") and (text := read(trait))
    }


def _script(trait: Trait, converter: str, text: Text) -> str:
    group = trait.group[0].upper() + trait.group[1:]
    title = re.split(r" \(|[,:]", trait.title)[0]
    pinned = {name.strip('"').partition("<")[0] for name in text.packages}
    others = [name for name in trait.packages if name not in pinned]
    needed = dict.fromkeys((*text.packages, *others))
    imports = _sorted({"import numpy as np", *trait.imports, *text.imports})
    return (
        f'"""{group}, {title}: {converter}.\n\npip install {" ".join(needed)}\n"""'
        f"\n\n{imports}\n\n{trait.code}\n{text.code}\n{_COMPARE}"
    )


def _sorted(imports: Iterable[str]) -> str:
    """Return import lines in ruff's order: those of this repository come last."""
    ours = [line for line in imports if line.startswith("from skforge")]
    others = sorted(set(imports) - {*ours}, key=lambda line: (line[:4] == "from", line))
    return "\n".join(others) + ("\n\n" + "\n".join(ours) if ours else "")


def main() -> None:
    """Write all scripts, and remove others."""
    CELLS.mkdir(exist_ok=True)
    for file in CELLS.glob("*.py"):
        file.unlink()
    for name, text in cells().items():
        (CELLS / f"{name}.py").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
