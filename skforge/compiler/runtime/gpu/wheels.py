"""Finds libraries and tools in NVIDIA's Python packages."""

from __future__ import annotations

import sys
from pathlib import Path


def wheel_folders(*patterns: str) -> list[str]:
    """Return the folders of the ``nvidia`` packages that match, newest first.

    They are searched on the path and not imported, as ``nvidia`` is a namespace shared
    by many packages.
    """
    roots = dict.fromkeys(Path(entry or ".") / "nvidia" for entry in sys.path)
    return [
        str(folder)
        for root in roots
        if root.is_dir()
        for pattern in patterns
        for folder in sorted(root.glob(pattern), reverse=True)
    ]
