"""Where NVIDIA's Python packages keep libraries and tools."""

from __future__ import annotations

import sys
from pathlib import Path


def wheel_folders(*patterns: str) -> list[str]:
    """Return the folders of the ``nvidia`` packages that match, the newest first.

    Looked for along the path and not imported: ``nvidia`` is a namespace of many.
    """
    roots = dict.fromkeys(Path(entry or ".") / "nvidia" for entry in sys.path)
    return [
        str(folder)
        for root in roots
        if root.is_dir()
        for pattern in patterns
        for folder in sorted(root.glob(pattern), reverse=True)
    ]
