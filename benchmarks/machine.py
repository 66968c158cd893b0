"""What numbers depend on besides the code: CPU, versions, load."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from skforge import Target

PACKAGES = (
    "numpy",
    "scikit-learn",
    "xgboost",
    "lightgbm",
    "catboost",
    "llvmlite",
    "treelite",
    "pylignum",
    "tl2cgen",
    "onnx",
    "onnxruntime",
    "skl2onnx",
    "onnxmltools",
    "scikit-learn-intelex",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvforest-cu13",
    "cuml-cu13",
    "hummingbird-ml",
    "torch",
    "shap",
    "fasttreeshap",
    "dask",
    "pyspark",
    "ray",
    "pandas",
    "pyarrow",
)


def machine() -> dict[str, Any]:
    """Return the CPU, versions of what is installed, the load and the time."""
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
    """Return the facts as a sentence."""
    versions = ", ".join(f"{name} {v}" for name, v in facts["packages"].items())
    return (
        f"Measured on {facts['measured']}: {facts['target']}, load average "
        f"{facts['load_average']:.1f}. Versions: Python {facts['python']}, {versions}."
    )
