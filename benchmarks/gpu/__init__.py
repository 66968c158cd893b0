"""Benchmarks of GPU targets: ``python -m benchmarks.gpu`` and ``….gpu.static``."""

from __future__ import annotations

import sys
from pathlib import Path

# The modules above are no package: scripts beside them find each other so.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
