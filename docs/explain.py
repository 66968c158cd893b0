"""Draws the plots of explain.md: ``python docs/explain.py``.

It runs the code of the page up to each of them, so that a picture is of what the page
shows.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")

#: Pictures, the code after which they are there, and their inches.
PICTURES = {
    "explain.png": ("plots.beeswarm", (7, 4)),
    "dependence.png": ("PartialDependenceDisplay(", (7, 3.2)),
}


def main() -> None:
    """Run the page's blocks and keep the figures that they draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    wanted, found = dict(PICTURES), dict[str, object]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for block in blocks:
            if not wanted:
                break
            exec(compile(block, PAGE.name, "exec"), found)
            for name, (code, size) in [*wanted.items()]:
                if code in block:
                    figure = pyplot.gcf()
                    figure.set_size_inches(*size)
                    figure.savefig(PAGE.parent / name, dpi=90, bbox_inches="tight")
                    pyplot.close(figure)
                    del wanted[name]
    assert not wanted, wanted


if __name__ == "__main__":
    main()
