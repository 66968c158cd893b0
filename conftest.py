"""What pytest cannot import: of optional packages, and of skforge 0.1.0."""

from __future__ import annotations

from importlib.util import find_spec

#: Two modules raise: those that pickles of skforge 0.1.0 ask for.
collect_ignore = ["skforge/compiler/forest.py", "skforge/compiler/runtime.py"]
if not find_spec("pyspark"):  # the module subclasses a class of it
    collect_ignore.append("skforge/distributed/_spark_transformer.py")
