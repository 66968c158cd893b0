"""What a kernel's assembly holds: instructions by mnemonic, of parts by subtraction."""

from __future__ import annotations

import re
from collections import Counter

#: An instruction's line: blanks, a mnemonic. Directives begin with a dot, and labels
#: end with a colon.
_INSTRUCTION = re.compile(r"^\s+(?P<mnemonic>[a-z][a-z0-9.]*)(?:\s|$)", re.MULTILINE)


def mnemonics(text: str) -> Counter[str]:
    """Return how often each instruction stands in assembly text.

    >>> mnemonics("f:\\n\\tmovl\\t$1, %eax\\n\\t.p2align 4\\n\\tretq\\n")
    Counter({'movl': 1, 'retq': 1})
    """
    return Counter(m["mnemonic"] for m in _INSTRUCTION.finditer(text))


def describe(counts: Counter[str], names: int = 3) -> str:
    most = ", ".join(f"{name} {n}" for name, n in counts.most_common(names))
    return f"{counts.total():,}" + (f" ({most})" if most else "")
