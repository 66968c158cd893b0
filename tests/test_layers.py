"""Imports point one way: a module imports its own layer or a lower one."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Lowest first. A name is a module, or a folder with all that lies in it.
LAYERS = (
    (
        "skforge._compat",
        "skforge._container",
        "skforge._docs",
        "skforge._typing",
        "skforge._version",
        "skforge.compiler.forest",
        "skforge.compiler.runtime",
        "skforge.config",
        "skforge.exceptions",
        "skforge.runtime",
    ),
    ("skforge.forest", "skforge.compiler.system", "skforge.compiler.target"),
    (
        "skforge.frontends",
        "skforge.outputs",
        "skforge.schedule",
    ),
    ("skforge.compiler.ir",),
    ("skforge.compiler.binning", "skforge.compiler.codegen", "skforge.gpu.codegen"),
    ("skforge.compiler.layouts", "skforge.gpu.layouts"),
    ("skforge.compiler.passes", "skforge.gpu.nest", "skforge.gpu.passes"),
    ("skforge.compiler.cost", "skforge.gpu.cost"),
    (
        "skforge.compiler.defaults",
        "skforge.compiler.lowering",
        "skforge.gpu.defaults",
        "skforge.gpu.lowering",
    ),
    ("skforge.compiler.backend",),
    ("skforge.compiler.driver",),
    (
        "skforge.engine",
        "skforge.gpu.backend",
        "skforge.gpu.runtime",
    ),
    ("skforge.rows",),
    ("skforge.modules",),
    ("skforge.sources",),
    (
        "skforge.gpu.cost_model",
        "skforge.gpu.search",
        "skforge.gpu.space",
        "skforge.tuning",
    ),
    ("skforge.prediction",),
    ("skforge.display",),
    ("skforge.estimators",),
    (
        "skforge.explainer",
        "skforge.exporters",
        "skforge.inspection",
        "skforge.persistence",
        "skforge.search",
    ),
    ("skforge.acceleration", "skforge.distributed", "skforge.polars"),
    ("skforge.__main__", "skforge.cli"),
)

# Packages that hand on names of modules, loaded on first use: as high as these are.
FACES = ("skforge", "skforge.tuning")

#: What a module may import by a text although it lies above or imports the module; a
#: folder stands for the modules in it. Other texts count as import statements do.
DOORS = {
    (
        "skforge.compiler.backend",
        "skforge.engine.cpu.backend",
    ): "by the kind of a target",
    ("skforge.compiler.backend", "skforge.gpu.backend"): "by the kind of a target",
    ("skforge.compiler.backend", "skforge.gpu.runtime.on_device"): "for rows on a GPU",
    ("skforge.frontends", "skforge.frontends"): (
        "a registry: frontends of pipelines and wrappers read their members with it"
    ),
    ("skforge.schedule.schedule", "skforge.schedule.presets"): (
        "Schedule.preset makes schedules, as the presets do"
    ),
    ("skforge.sources.base", "skforge.sources"): "a registry of adapters, by library",
    ("skforge.tuning.machines", "skforge.gpu.search"): "by the kind of a target",
    ("skforge.tuning.machines", "skforge.tuning.cpu"): "by the kind of a target",
    ("skforge.tuning.space.space", "skforge.gpu.space"): "by the name of a space",
    ("skforge.tuning.space.space", "skforge.tuning.space.cpu"): (
        "by the name of a space"
    ),
}


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(f): f for f in sorted((ROOT / "skforge").rglob("*.py"))}


def layer(module: str) -> int:
    if module in FACES:
        return max(map(layer, imports()[module]))
    found = [
        i
        for i, names in enumerate(LAYERS)
        if any(module == name or module.startswith(f"{name}.") for name in names)
    ]
    assert found, f"{module} is in no layer: add it to LAYERS in {Path(__file__).name}"
    return found[0]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Walk all but expressions, which are most of a tree and import nothing."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def imported_modules(source: str, modules: set[str]) -> set[str]:
    """Return the skforge modules that the text imports, inside functions as well."""
    found: set[str] = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in modules else str(node.module))
    return {name for name in found if name.split(".")[0] == "skforge"}


@cache
def imports() -> dict[str, set[str]]:
    """Return what each module imports, once asked: every worker collects this file."""
    return {
        name: imported_modules(file.read_text(encoding="utf-8"), set(MODULES))
        for name, file in MODULES.items()
    }


def named_modules(source: str, module: str, modules: set[str]) -> set[str]:
    """Return the modules that texts name: those of tables and of ``import_module``.

    Of a text that is put together, these are all that lie in the folder it begins with.
    """
    if '"skforge.' not in source and "import_module" not in source:
        return set()
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in modules:
            found.add(str(node.value))
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and isinstance(node.args[0], ast.JoinedStr)
        ):
            text = ast.unparse(node.args[0]).replace("{__name__}", module)
            folder = re.fullmatch(r"f'([\w.]+)\.\{[^{}]+\}'", text)
            assert folder, f"line {node.lineno}: import_module of {text} is not read"
            found |= {name for name in modules if name.rpartition(".")[0] == folder[1]}
    # texts that name the folder of their module are of its files
    return {name for name in found if not f"{module}.".startswith(f"{name}.")}


@cache
def texts() -> dict[str, set[str]]:
    return {
        name: named_modules(file.read_text(encoding="utf-8"), name, set(MODULES))
        for name, file in MODULES.items()
    }


def through(door: tuple[str, str]) -> set[str]:
    """Return the modules that lie behind a door."""
    module, behind = door
    return {name for name in texts()[module] if f"{name}.".startswith(f"{behind}.")}


@cache
def arrows() -> dict[str, set[str]]:
    """Return what each module imports, by statements or by texts that are no doors."""
    graph = {name: imports()[name] | texts()[name] for name in MODULES}
    for door in DOORS:
        graph[door[0]] -= through(door) - imports()[door[0]]
    return graph


def upward(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{module} (layer {layer(module)}) imports {name} (layer {layer(name)})"
        for module, found in graph.items()
        for name in sorted(found)
        if layer(name) > layer(module)
    ]


def test_imports_point_one_way():
    assert sum(map(bool, imports().values())) > 300
    assert upward(arrows()) == []


def check_order(graph: dict[str, set[str]]) -> None:
    """Raise CycleError if there is a circle; what faces hand on is none."""
    faces = {*FACES}
    below = {name: graph[name] - faces for name in graph.keys() - faces}
    TopologicalSorter(below).prepare()


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions and for type checkers count, too."""
    check_order(arrows())


@pytest.mark.parametrize("door", DOORS, ids=" to ".join)
def test_doors_are_there_and_needed(door):
    graph = {**arrows(), door[0]: arrows()[door[0]] | through(door)}
    if upward(graph) == []:
        with pytest.raises(CycleError):
            check_order(graph)


#: Modules of CPUs that may name GPUs, and what for. Users know the directive, and the
#: parameter of models whose large batches a GPU takes, by these words.
NAME_GPUS = {
    "skforge.cli": "what users type and read",
    "skforge.compiler.backend": "where the part of GPUs is",
    "skforge.schedule": "schedules are of CPUs or of GPUs",
    "skforge.compiler.target": "Target.cuda, Target.hip",
    "skforge.exporters.c_source": "the emitter of C++, whose statements are also C's",
    "skforge.modules.auto": "a CPU and a GPU, for one model",
    "skforge.persistence.stored_tuner": "ScheduleSpace.gpu",
    "skforge.prediction.choose_targets": 'what target="auto" is',
    "skforge.prediction.searching": "the time of a search, for both",
    "skforge.search": "a grid of Table 5's parameters",
    "skforge.tuning": "CostModel",
    "skforge.tuning.machines": "where the part of GPUs is",
    "skforge.tuning.search.heuristic": "CostModel",
    "skforge.tuning.search.learned": "CostModel",
    "skforge.tuning.space.space": "ScheduleSpace.gpu",
}
GPUS = re.compile(r"gpus?(?![a-z])|cuda|rocm|cupy|(?<![a-z])hip(?![a-z])")
PUBLIC = re.compile(r"gpu_?dimensions?|gpu_min_rows|__cuda_array_interface__")


FRAMES = re.compile(r"pandas|polars|pyarrow")


@cache
def names_in(source: str) -> list[str]:
    """Return the names in code and in its strings that are no sentences."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [
        token.string.lower()
        for token in tokens
        if token.type == tokenize.NAME
        or (token.type == tokenize.STRING and " " not in token.string)
    ]


def names_of_gpus(source: str) -> list[str]:
    return [word for word in names_in(source) if GPUS.search(PUBLIC.sub("", word))]


@pytest.mark.parametrize("folder", ["forest", "compiler", "gpu", "outputs", "engine"])
def test_below_the_readers_of_rows_there_are_only_numbers(folder):
    below = {
        m: f for m, f in MODULES.items() if f"{m}.".startswith(f"skforge.{folder}.")
    }
    assert len(below) > 5
    for module, file in below.items():
        words = names_in(file.read_text(encoding="utf-8"))
        assert not any(map(FRAMES.search, words)), module


def test_what_names_gpus_is_in_their_folder():
    folders = ("skforge.gpu", "skforge.cli", "skforge.schedule")
    naming = {
        next((name for name in folders if f"{module}.".startswith(f"{name}.")), module)
        for module, file in MODULES.items()
        if names_of_gpus(file.read_text(encoding="utf-8"))
    }
    assert naming == {"skforge.gpu", *NAME_GPUS}


def test_names_of_gpus_are_counted():
    source = '''
def run(on_gpu, gpu_dimension, chip, cuda_text, gpu_min_rows):
    """Rows on a GPU."""
    raise ValueError("a GPU is needed", "skforge.gpu.backend", "HIP")  # of GPUs
'''
    assert names_of_gpus(source) == [
        *("on_gpu", "cuda_text", '"skforge.gpu.backend"', '"hip"')
    ]


LAYOUTS = "skforge.compiler.layouts."


def test_layouts_know_no_other_layout_but_share_blocks_and_what_lies_beside_them():
    within = {
        name.removeprefix(LAYOUTS) for name in MODULES if name.startswith(LAYOUTS)
    }
    layouts = {name.split(".")[0] for name in within if "." in name} - {"blocks"}
    assert len(layouts) == 7
    for name in within:
        imported = {
            m.removeprefix(LAYOUTS).split(".")[0] for m in imports()[LAYOUTS + name]
        }
        others = imported & layouts - {name.split(".")[0]}
        assert not others, f"{LAYOUTS}{name} imports {others}"


def test_no_benchmarks_import_each_other_in_a_circle():
    """Scripts of the folder name each other with or without the folder's name."""
    folder = ROOT / "benchmarks"
    modules = {module_name(file): file for file in folder.rglob("*.py")}
    graph = {}
    for name, file in modules.items():
        found = set()
        for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{a.name}" for a in node.names} | {node.module}
        whole = found | {f"benchmarks.{one}" for one in found}
        graph[name] = {one for one in whole & modules.keys() if one != name}
    assert any(graph.values())
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_form_of_import_is_seen():
    source = """
import numpy
import skforge.tuning.search as search
from skforge import forest
from skforge.forest import Forest
def lazy():
    from skforge.estimators import CompiledForest
"""
    modules = {"skforge.forest", "skforge.estimators"}
    assert imported_modules(source, modules) == {
        "skforge.tuning.search",
        "skforge.forest",
        "skforge.estimators",
    }


def test_every_text_that_names_a_module_is_seen():
    source = """
HOMES = {"cpu": "skforge.tuning.cpu", "skforge.search": None}
import_module("skforge.inspection")
import_module(f"{__name__}.{HOMES[0]}")
def lazy(kind):
    importlib.import_module(f"skforge.sources.{kind}")
    return files("skforge.gpu"), "skforge.explainer is a module", "skforge.none"
"""
    named = {"skforge.tuning.cpu", "skforge.search", "skforge.inspection"}
    named |= {"skforge.gpu.nest", "skforge.gpu.space", "skforge.sources.files"}
    others = {"skforge.gpu", "skforge.gpu.nest.loops", "skforge.explainer"}
    assert named_modules(source, "skforge.gpu", named | others) == named
    assert named_modules('name = "skforge.gpu"', "skforge.tuning", others) == {
        "skforge.gpu"
    }
    with pytest.raises(AssertionError) as error:
        named_modules('import_module(f"skforge.{a}.{b}")', "skforge.gpu", others)
    assert str(error.value).splitlines()[0] == (
        "line 1: import_module of f'skforge.{a}.{b}' is not read"
    )


def test_a_module_in_no_layer_is_reported():
    with pytest.raises(AssertionError) as error:
        layer("skforge.compiler.nowhere")
    assert str(error.value).splitlines()[0] == (
        "skforge.compiler.nowhere is in no layer: add it to LAYERS in test_layers.py"
    )


def test_layers_name_modules_that_exist_once():
    named = [name for names in LAYERS for name in names]
    assert [name for name in named if name not in MODULES] == []
    assert len(named) == len(set(named))
    parts = [name for name in named if name.startswith(tuple(f"{n}." for n in named))]
    assert parts == []  # a folder is named with all that lies in it
