"""``skforge.export``: write a forest as a C library that needs no Python."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from skforge._version import __version__
from skforge.compiler.system import shared_suffix
from skforge.compiler.target import Target
from skforge.config import compares_forms
from skforge.exceptions import (
    InvalidInputError,
    TargetError,
    UnsupportedModelError,
    check_choice,
)
from skforge.exporters import check
from skforge.exporters.c_source import example_text, header_text, source_text
from skforge.exporters.check_wheel import verify_wheel
from skforge.exporters.contents import Library
from skforge.exporters.library import check_targets, export_object, outputs_of
from skforge.exporters.llvm_wrapper import constants_of
from skforge.exporters.wheel import check_package, link_shared, wheel
from skforge.forest.forest import Forest
from skforge.modules.compiled import CompiledModule
from skforge.prediction.choose_targets import size_ranges
from skforge.runtime.facts import WINDOWS
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.mappings import MappingColumns
from skforge.schedule.ranges import SchedulesByRange
from skforge.sources.base import Source
from skforge.sources.find import source_of

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

ExportKind: TypeAlias = Literal["object", "shared", "c", "wheel"]
KINDS = get_args(ExportKind)
FORMAT = "skforge-export"

#: Target names that stand for several CPUs, best first.
_SEVERAL: dict[Any, Any] = {"x86-64": ("x86-64-v4", "x86-64-v3", "x86-64-v2")}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@own_arithmetic
def export(
    compiled: CompiledForest | CompiledModule | Forest,
    path: str | os.PathLike[str],
    kind: ExportKind = "object",
    target: str | Target | Sequence[str | Target] = "cpu",
    *,
    name: str | None = None,
    batch_sizes: Sequence[int] | None = None,
    apply: bool = False,
    contribs: bool = False,
    version: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a forest as a library with a C header that needs no Python.

    The folder gets the library, its header ``NAME.h``, ``NAME.json``, which describes
    the functions and the contents, ``example.c``, and ``check.csv``: rows and their
    results, which the example compares. The library only depends on the C library. Its
    results have the same bits as :meth:`CompiledModule.predict_raw`. That of a CatBoost
    model with categories has a function that makes rows of numbers and texts.

    Parameters
    ----------
    compiled : CompiledForest, CompiledModule or Forest
        The model. Its schedules are used for the CPU it was compiled for, default
        schedules for other CPUs.
    path : path
        The folder to create.
    kind : {"object", "shared", "c", "wheel"}, default="object"
        ``object``: a relocatable object file to link into a program; exporting it needs
        no C compiler. ``shared``: a shared library, made by the system's linker.
        ``c``: one file of portable C99 for any CPU, even if LLVM has no code generator
        for it; it ignores ``target`` and is many times slower. ``wheel``: a shared
        library as a Python package that needs NumPy alone.
    target : str, Target or sequence of them, default="cpu"
        "cpu" is this machine's CPU; "x86-64-v2" to "x86-64-v4" and "aarch64" are any
        CPU of that kind; "x86-64" puts all three levels in one library, which chooses
        at run time.
    name : str, default=None
        Prefix of every function; None derives it from the folder's name.
    batch_sizes : sequence of int, default=None
        Expected numbers of rows per call. Kernels for other sizes are left out, which
        makes the library smaller; it still accepts any number of rows.
    apply : bool, default=False
        Whether to add a function that finds leaves; it stores the trees a second time,
        about 12 bytes per node.
    contribs : bool, default=False
        Whether to add ``predict_contribs``, which returns what each feature contributes
        to the raw scores (SHAP values), as :meth:`CompiledForest.predict_contribs`
        without options; not for ``kind="c"`` or categories of CatBoost. It stores about
        100 bytes per node for calls with few rows, and as many again for calls with
        many rows.
    version : str, default=None
        The version of a wheel; only for ``kind="wheel"``. None means "1.0.0".
    overwrite : bool, default=False
        Whether to replace an earlier export in ``path``; other files there are kept.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InvalidInputError
        If an argument is invalid, or ``path`` already exists.
    UnsupportedModelError
        If the model cannot be exported, or ``contribs=True`` and it does not store the
        covers of its nodes.
    TargetError
        If a target is not supported, the model was compiled only for a GPU, or no
        linker is available for "shared" and "wheel".
    NotFittedError
        If a CompiledForest was not fitted.
    VerificationError
        If the exported code does not return the model's bits. It is checked by running
        it, if this CPU can run it.

    Examples
    --------
    >>> import tempfile, skforge
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> forest = skforge.load_forest(tree)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = skforge.export(forest, f"{folder}/tree")
    ...     sorted(file.name for file in made.iterdir())
    ['check.csv', 'example.c', 'tree.h', 'tree.json', 'tree.o']
    """
    check_choice("kind", kind, KINDS)
    folder = Path(os.path.abspath(path))
    chosen = _name(folder, name)
    _check_free(folder, overwrite)
    forest, table, fitted_target, reduction, source = _parts(compiled)
    _check_rows(forest, contribs)
    ranges = size_ranges(batch_sizes)
    targets = _targets(target)
    if kind == "wheel":
        version = check_package(chosen, version)
    elif version is not None:
        raise InvalidInputError(
            "version applies only to kind='wheel'; other kinds carry a checksum."
        )
    if kind == "c":
        _check_portable(reduction, contribs)
    else:
        check_targets(targets)
    library = Library(chosen, forest, *outputs_of(forest), apply, reduction=reduction)
    if kind == "c":
        binary = source_text(library).encode()
        file, verified, sample = f"{chosen}.c", False, check.draw_sample(library)
    else:
        tables = [table if cpu == fitted_target else None for cpu in targets]
        sizes = None if ranges is None else [*ranges.values()]
        make = partial(
            export_object,
            library,
            tables=tables,
            batch_sizes=sizes,
            contribs=contribs,
            python=kind == "wheel",
        )
        # Windows' linkers take COFF, which is not loaded here: its code is checked in
        # an object of this system. Each linker reads GNU's names of what is exported.
        abi = "msvc" if kind == "object" else "gnu"
        coff = [
            replace(t, triple=re.sub("msvc(-elf)?$", abi, t.triple)) for t in targets
        ]
        if "windows" in targets[0].triple:
            targets = [replace(t, triple=Target.host().triple) for t in targets]
        library, binary = make(targets)
        sample = check.draw_sample(library)
        file, verified = f"{chosen}.o", check.verify(library, binary, sample)
        if targets != coff:
            targets, (library, binary) = coff, make(coff)
    if kind in ("shared", "wheel"):
        file = f"lib{chosen}.{shared_suffix(targets[0].triple)}"
        binary = link_shared(binary, file, targets[0], library.libm)
    library = replace(library, texts=source.codes())
    files = {file: binary}
    if version is None:
        files |= _texts(library, kind, file, sample)
    facts = _metadata(library, kind, file, files, verified)
    if version is not None:
        columns = _columns(source)
        name, whole = wheel(library, version, targets[0], file, binary, facts, columns)
        if verified and compares_forms() and _is_of_this_system(targets[0]):
            verify_wheel(library, whole, sample, columns)
        files = {name: whole}
    files[f"{chosen}.json"] = facts
    _write(folder, files)
    return folder


def _check_portable(reduction: str, contribs: bool) -> None:
    if reduction != "exact":
        raise InvalidInputError(
            f"reduction={reduction!r} is not available with kind='c', which always "
            "sums in the source's order; use kind='object', 'shared' or 'wheel'."
        )
    if contribs:
        raise InvalidInputError(
            "contribs=True is not available with kind='c'; use kind='object', "
            "'shared' or 'wheel'."
        )


def _name(folder: Path, name: str | None) -> str:
    if name is None:
        name = re.sub(r"\W", "_", folder.name, flags=re.ASCII)
        name = name if _NAME.fullmatch(name) else f"model_{name}"[:64]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(
            "name is the prefix of every C function, so it must be a letter followed "
            f"by up to 63 letters, digits and underscores. Got {name!r} instead."
        )
    return name


def _check_free(folder: Path, overwrite: bool) -> None:
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise InvalidInputError(
            f"{folder} already exists; choose another path, or pass overwrite=True to "
            "replace an earlier export."
        )
    if folder.is_dir() and not folder.is_symlink():
        inside = list(folder.iterdir())
        if not inside or any(map(_facts, inside)):
            return
    raise InvalidInputError(
        f"{folder} is not an export of skforge, so overwrite=True does not replace "
        "it; choose another path."
    )


def _facts(file: Path) -> dict[str, Any]:
    try:
        facts = json.loads(file.read_text("utf-8")) if file.suffix == ".json" else {}
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) and facts.get("format") == FORMAT else {}


def _check_rows(forest: Forest, contribs: bool) -> None:
    if forest.row_norms:
        raise UnsupportedModelError(
            "The rows of this graph are divided by a norm (Normalizer) before the "
            "trees, which an exported library does not compute; save the model with "
            "skforge.save, or give skforge a graph without the node."
        )
    if forest.is_encoded and contribs:
        raise UnsupportedModelError(
            "contribs=True is not available for a model with categories of CatBoost; "
            "compute contributions in Python."
        )


def _parts(
    compiled: Any,
) -> tuple[Forest, SchedulesByRange | None, Target | None, Any, Source]:
    if isinstance(compiled, Forest):
        return compiled, None, None, "exact", source_of(compiled, compiled)
    if isinstance(compiled, CompiledModule):
        cpu = _cpu_of(compiled.target, "its forest, skforge.export(module.forest, …)")
        forest, table = compiled.forest, compiled.schedules
        return forest, table, cpu, compiled.reduction, source_of(forest, forest)
    from skforge.estimators import CompiledForest
    from skforge.frontends import answers_itself
    from skforge.sources.fitted import model_of, start_of

    if not isinstance(compiled, CompiledForest):
        raise InvalidInputError(
            "compiled must be a CompiledForest, a CompiledModule or a Forest. "
            f"Got {type(compiled).__name__} instead; load_forest(model) reads one."
        )
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(compiled)
    model = model_of(compiled)
    if start_of(compiled) is not None:
        raise UnsupportedModelError(
            "Parts of this model run in their own Python library, which an exported "
            "library cannot call; export only the forest with "
            "skforge.export(fast.forest_, …), and give it rows as they arrive there."
        )
    if answers_itself(model):
        raise UnsupportedModelError(
            f"{type(model).__name__} computes its predictions from raw scores with "
            "scikit-learn objects, which cannot be exported; "
            "skforge.export(fast.forest_, …) exports the raw scores."
        )
    source = compiled._compiled().source
    if source.leaf_source is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} answers with what its leaves hold beside values, "
            "which an exported library has not; predict in Python."
        )
    cpu, table = compiled.target_, compiled.schedule_
    if compiled.gpu_min_rows_ is not None:  # for CPU and GPU: take the CPU module
        module = compiled._compiled().module
        module = getattr(module, "cpu", module)
        cpu, table = module.target, module.schedules
    cpu = _cpu_of(cpu, "its forest, skforge.export(fast.forest_, …)")
    return compiled.forest_, table, cpu, compiled.reduction, source


def _is_of_this_system(target: Target) -> bool:
    systems = ("windows", WINDOWS), ("apple", sys.platform == "darwin")
    return all((name in target.triple) == here for name, here in systems)


#: Frames would be arrays of their values, if nothing was said.
_CODES = (
    "the model knows categories by name, but not the columns that hold them; pass an "
    "array of their codes, or export a CompiledForest that was fitted with a frame of "
    "training"
)


def _columns(source: Source) -> MappingColumns | str | None:
    """Return how a wheel reads rows with names, why it does not, or None."""
    try:
        columns = source.columns()
    except InvalidInputError:  # the model has no names
        return _CODES if source.forest.names_categories else None
    if columns is None or source.reading() is None:
        return None
    return replace(columns, by_frame=False)


def _cpu_of(target: Target, instead: str) -> Target:
    if target.kind != "cpu":
        raise TargetError(
            f"The model was compiled for {target}, but exported libraries run on "
            f"CPUs; export {instead}, which uses the default CPU schedules."
        )
    return target


def _targets(target: str | Target | Sequence[str | Target]) -> list[Target]:
    asked = [target] if isinstance(target, (str, Target)) else list(target)
    names = [cpu for name in asked for cpu in _SEVERAL.get(name, [name])]
    targets = [*dict.fromkeys(map(Target.parse, names))]
    if len(targets) > 1 and targets[0].arch == "aarch64":
        raise TargetError("target names 'aarch64' more than once; name it once.")
    # Wider vectors first, then more features: the library takes the first that runs.
    return sorted(targets, key=lambda t: (-t.vector_bits, -len(t.enabled)))


# ------------------------------------------------------------ files


def _texts(
    library: Library, kind: str, file: str, sample: check.CheckSample
) -> dict[str, bytes]:
    name = library.name
    linked = file if kind != "shared" else f"-L. -l{name} -Wl,-rpath,."
    build = f"Build: cc -o example example.c {linked} -lm"
    tolerances = {x: check.tolerance(library, sample, x) for x in library.listed}
    return {
        f"{name}.h": header_text(library).encode(),
        "example.c": example_text(library, build, tolerances).encode(),
        "check.csv": check.check_text(library, sample).encode(),
    }


#: Facts of ``NAME.json`` about the model.
_OF_FOREST = (
    *("source", "task", "n_trees", "n_nodes", "n_features", "n_outputs", "n_columns"),
    *("feature_names", "class_labels"),
)
_OF_LIBRARY = "categories", "row_dtype", "reduction"


def _metadata(
    library: Library, kind: str, file: str, files: Mapping[str, bytes], verified: bool
) -> bytes:
    forest = library.forest
    size, constants = len(files[file]), sum(map(len, constants_of(library).values()))
    facts = {
        "format": FORMAT,
        "format_version": 2,
        "skforge_version": __version__,
        "name": library.name,
        "kind": kind,
        "library": file,
        "checksum": forest.content_hash(),
        "verified_here": verified,
        "needs": ["libc", "libm"][: 1 + library.libm],
        "model": {
            **{name: getattr(forest, name) for name in _OF_FOREST},
            **{name: getattr(library, name) for name in _OF_LIBRARY},
            "transform": forest.outputs.name,
            "texts": {str(column): codes for column, codes in library.texts.items()},
            "missing_value": str(float(forest.missing_value)),
        },
        "functions": {
            name: {"dtype": dtype, "columns": columns}
            for name, (dtype, columns) in library.results.items()
        },
        "left_out": dict(library.left_out),
        "variants": [
            {
                "target": json.loads(variant.target.to_json()),
                "schedules": [
                    {"rows": [first, last], "schedule": json.loads(schedule.to_json())}
                    for (first, last), schedule in sorted(variant.schedules.items())
                ],
            }
            for variant in library.variants
        ],
        "sizes": {
            "library": size,
            "constants": constants if library.variants else None,
            "per_tree": round(size / max(1, forest.n_trees), 1),
            "scratch_per_thread": sum(library.scratch),
        },
        "sha256": {n: hashlib.sha256(data).hexdigest() for n, data in files.items()},
    }
    return (json.dumps(facts, indent=1) + "\n").encode()


def _others(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    names = set(files)
    for file in folder.iterdir():
        if facts := _facts(file):
            names |= {file.name, *facts.get("sha256", ())}
    return [file for file in folder.iterdir() if file.name not in names]


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files to a temporary folder that then replaces ``folder``.

    Files that an earlier export did not write are kept. An interruption leaves the old
    folder under its name, or under a temporary name beside it.
    """
    others = _others(folder, files) if folder.exists() else []
    folder.parent.mkdir(parents=True, exist_ok=True)
    tag = secrets.token_hex(8)
    beside = folder.with_name(f".{folder.name}.{tag}.tmp")
    old = folder.with_name(f".{folder.name}.{tag}.old")
    beside.mkdir()
    try:
        for name, data in files.items():
            with open(beside / name, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for other in others:
            if other.is_dir() and not other.is_symlink():
                shutil.copytree(other, beside / other.name, symlinks=True)
            else:
                shutil.copy2(other, beside / other.name, follow_symlinks=False)
        if folder.exists():
            os.rename(folder, old)
        os.rename(beside, folder)
    except BaseException:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
