"""Accelerates libraries as Python starts, then runs the usual ``sitecustomize``."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _run_usual() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is None or spec.loader is None:
        return
    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _begin() -> None:
    try:
        from skforge.acceleration.launching import begin
    except ImportError:  # another Python, without skforge
        return
    try:
        begin()
    except Exception as error:  # noqa: BLE001 - the program runs without us
        print(f"skforge accelerates nothing: {error}", file=sys.stderr)


try:
    _begin()
finally:
    _run_usual()
