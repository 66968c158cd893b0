"""Benchmarks; ``README.md`` says what each measures."""

import sys
from pathlib import Path

# Scripts of this folder also run as files: they import each other by their bare names.
sys.path.insert(0, str(Path(__file__).resolve().parent))
