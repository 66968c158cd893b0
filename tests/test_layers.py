"""Imports point one way: a module imports its own layer or a lower one."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Lowest first. A name without a wildcard beats a pattern of another layer.
LAYERS = (
    (
        "skforge.exceptions",
        "skforge._config",
        "skforge._npy",
        "skforge._timing",
        "skforge.compiler",
        "skforge.compiler._compat",
    ),
    ("skforge.compiler.forest*", "skforge.compiler.directives"),
    (
        "skforge.compiler.frontends",
        "skforge.compiler.frontends.*",
        "skforge.compiler.target",
        "skforge.compiler.loop_nest*",
        "skforge.compiler.reference",
        "skforge.compiler.code_table",
        "skforge.compiler.transforms*",
        "skforge.compiler.rows*",
        "skforge.compiler.backends.libm",
    ),
    ("skforge.compiler.schedule",),
    ("skforge.compiler.presets", "skforge.compiler.ir", "skforge.compiler.ir.*"),
    (
        "skforge.compiler.representations",
        "skforge.compiler.representations.*",
        "skforge.compiler.interpreter*",
    ),
    ("skforge.compiler.passes", "skforge.compiler.passes.*"),
    ("skforge.compiler.backends", "skforge.compiler.backends.*"),
    (
        "skforge.compiler.pipeline",
        "skforge.compiler.module*",
        "skforge.compiler.default_schedule",
        "skforge.compiler.default_gpu_schedule",
        "skforge.compiler.gpu_designs",
        "skforge.compiler.gpu_kernels",
    ),
    ("skforge.tuning.*",),
    (
        "skforge.estimators",
        "skforge._delegation",
        "skforge._dispatch",
        "skforge._inputs*",
        "skforge._entries",
        "skforge._export*",
        "skforge._linker",
        "skforge._state",
        "skforge._notebook",
        "skforge._stored",
        "skforge._tuned",
        "skforge._container",
        "skforge._persistence",
        "skforge._predictor",
        "skforge._verification",
        "skforge._witness",
    ),
    ("skforge.tuning", "skforge.tuning.schedule_search"),
    ("skforge", "skforge.__main__", "skforge._cli*", "skforge.distributed*"),
)

# (importer, imported) that point up all the same, each inside a function.
EXCEPTIONS = {
    # Files that `skforge.save` wrote are models, too.
    ("skforge.compiler.frontends", "skforge._persistence"),
    # `Schedule.preset(name)` is a method, and presets are written with `Schedule`.
    ("skforge.compiler.schedule", "skforge.compiler.presets"),
    # Pickles carry the version, which the build reads from the package's own file.
    ("skforge._state", "skforge"),
    ("skforge._persistence", "skforge"),
    # A library's version function, too.
    ("skforge.compiler.module_export", "skforge"),
    # So do records of searches.
    ("skforge.tuning.records", "skforge"),
    # The package's version is part of what names an object in the cache.
    ("skforge.compiler.backends.llvm_jit", "skforge"),
}


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(f): f for f in sorted((ROOT / "skforge").rglob("*.py"))}


def layer(module: str) -> int:
    exact = [i for i, names in enumerate(LAYERS) if module in names]
    found = exact or [
        i
        for i, names in enumerate(LAYERS)
        if any(fnmatchcase(module, name) for name in names)
    ]
    assert found, f"{module} is in no layer: add it to LAYERS in {Path(__file__).name}"
    return found[0]


def imported_modules(source: str, modules: set[str]) -> set[str]:
    """Return the skforge modules that the text imports, inside functions as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in modules else str(node.module))
    return {name for name in found if name.split(".")[0] == "skforge"}


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    own = layer(module)
    source = MODULES[module].read_text(encoding="utf-8")
    upward = [
        name
        for name in sorted(imported_modules(source, set(MODULES)))
        if layer(name) > own and (module, name) not in EXCEPTIONS
    ]
    assert upward == [], f"{module} (layer {own}) imports what is above it"


@pytest.mark.parametrize("importer", sorted({importer for importer, _ in EXCEPTIONS}))
def test_exceptions_are_still_needed(importer):
    source = MODULES[importer].read_text(encoding="utf-8")
    named = {imported for module, imported in EXCEPTIONS if module == importer}
    assert named <= imported_modules(source, set(MODULES))


def test_every_form_of_import_is_seen():
    source = """
import numpy
import skforge.tuning.search as search
from skforge.compiler import forest
from skforge.compiler.forest import Forest
def lazy():
    from skforge.estimators import CompiledForest
"""
    modules = {"skforge.compiler.forest", "skforge.estimators"}
    assert imported_modules(source, modules) == {
        "skforge.tuning.search",
        "skforge.compiler.forest",
        "skforge.estimators",
    }


def test_a_module_in_no_layer_is_reported():
    with pytest.raises(AssertionError) as error:
        layer("skforge.compiler.nowhere")
    assert str(error.value).splitlines()[0] == (
        "skforge.compiler.nowhere is in no layer: add it to LAYERS in test_layers.py"
    )


def test_an_exact_name_beats_a_pattern():
    assert layer("skforge.compiler.backends.libm") < layer("skforge.compiler.schedule")
    assert layer("skforge.compiler.backends.llvm") > layer("skforge.compiler.schedule")


def test_layers_name_modules_that_exist():
    names = [name for layer_names in LAYERS for name in layer_names]
    unused = [n for n in names if not any(fnmatchcase(m, n) for m in MODULES)]
    assert unused == []
