"""Draws explain.png, the plot of explain.md: ``python docs/explain.py``.

It runs the first code of the page, so that the picture is of what the page shows.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
PICTURE = Path(__file__).with_suffix(".png")


def main() -> None:
    """Run the page's first block and keep the figure that it draws."""
    import matplotlib

    matplotlib.use("Agg")
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert code
    found: dict[str, object] = {}
    exec(compile(code[1], PAGE.name, "exec"), found)
    figure = found["axes"].figure  # type: ignore[attr-defined]
    figure.set_size_inches(7, 4)
    figure.savefig(PICTURE, dpi=90, bbox_inches="tight")


if __name__ == "__main__":
    main()
