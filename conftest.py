"""What pytest cannot import where an optional package is not installed."""

from __future__ import annotations

from importlib.util import find_spec

#: The one module that imports its package at once: it subclasses a class of it.
collect_ignore = (
    [] if find_spec("pyspark") else ["skforge/distributed/_spark_transformer.py"]
)
