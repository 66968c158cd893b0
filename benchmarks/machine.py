"""What numbers depend on besides the code: CPU, versions, load."""

from __future__ import annotations

import json
import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from skforge import Target

#: What others' users would use instead, and the models' own libraries.
PEERS = (
    *("scikit-learn", "xgboost", "lightgbm", "catboost", "pylignum", "treelite"),
    *("tl2cgen", "lleaves", "onnx", "onnxruntime", "skl2onnx", "onnxmltools"),
    *("scikit-learn-intelex", "nvforest-cu13", "cuml-cu13", "hummingbird-ml", "shap"),
    *("shapiq", "woodelf-explainer", "dask", "pyspark", "ray"),
)
BASE = (
    *("numpy", "llvmlite", "pandas", "pyarrow"),
    *("cupy-cuda12x", "cupy-cuda13x", "torch"),
)
PACKAGES = (*BASE, *PEERS)

#: Days of releases, see ``fresh.py``.
RELEASES = Path(__file__).with_name("results") / "releases.json"


def machine() -> dict[str, Any]:
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "target": str(Target.host()),
        "python": platform.python_version(),
        "packages": packages,
        "load_average": os.getloadavg()[0],
        "measured": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def in_words(facts: dict[str, Any]) -> str:
    """Return the facts as a sentence, with the days of releases that are known."""
    days = json.loads(RELEASES.read_text()) if RELEASES.exists() else {}
    named = {
        f"{name} {version}": days.get(name, {}).get(version)
        for name, version in facts["packages"].items()
    }
    versions = ", ".join(f"{k} ({day})" if day else k for k, day in named.items())
    return (
        f"Measured on {facts['measured']}: {facts['target']}, load average "
        f"{facts['load_average']:.1f}. Versions: Python {facts['python']}, {versions}."
    )
