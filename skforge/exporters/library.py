"""Build a forest as a relocatable object with C functions; this needs only LLVM."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np

from skforge.compiler.binning.encoder_routines import encoder
from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.defaults.cpu import contribution_schedules, default_schedules
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.ir.hir.nodes import HirCache, Reduction
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.passes.lir import place_scratch
from skforge.compiler.system import heap_texts
from skforge.compiler.target import Target
from skforge.engine.compiling import most_rows
from skforge.engine.cpu.jit import emit_object, machine_attributes
from skforge.engine.explanations.contributions import parts_of
from skforge.engine.schedules import table_at
from skforge.exceptions import TargetError, UnsupportedModelError
from skforge.exporters import contents
from skforge.exporters import llvm_wrapper as code
from skforge.exporters.contents import Library, filled
from skforge.forest.categories import HashedCategories
from skforge.forest.encoder_tables import SIZES, tables_of
from skforge.forest.forest import Forest
from skforge.forest.leaves import not_sums
from skforge.forest.means import explained
from skforge.outputs.functions import FUNCTIONS
from skforge.outputs.steps import Steps, steps_in_code
from skforge.runtime.libm import exp
from skforge.schedule.ranges import BatchRange, SchedulesByRange
from skforge.schedule.schedule import Schedule

#: Scratch bytes per thread above which a kernel splits a batch, if that helps.
SCRATCH_BYTES = 1 << 20
#: The batch range whose traversal schedule is used to find leaves.
_LEAVES: BatchRange = (128, 2048)

#: What the kernels of a function compute: of which forest, by which schedules.
_Wanted: TypeAlias = tuple[Forest, SchedulesByRange, Element, Reduction]


def export_object(
    library: Library,
    targets: Sequence[Target],
    tables: Sequence[SchedulesByRange | None],
    batch_sizes: Sequence[int] | None = None,
    contribs: bool = False,
    python: bool = False,
) -> tuple[Library, bytes]:
    """Compile a library to an object with code for CPUs of one kind, best first.

    ``tables`` has the schedules for each target, None for the defaults. Ranges without
    any of ``batch_sizes`` are left out; ``contribs`` adds a function of contributions,
    and ``python`` functions for Python alone.
    """
    check_targets(targets)
    forest, reduction = library.forest, library.reduction
    contributing = _contributing(forest) if contribs else None
    left_out = dict(library.left_out)
    if contribs and contributing is None:
        left_out["predict_contribs"] = "no tree of the model tests a feature"
    texts: list[str] = []
    variants = []
    for number, (target, table) in enumerate(zip(targets, tables, strict=True)):
        table = table or default_schedules(forest, target, reduction)
        wanted: dict[str, _Wanted] = {
            "": (forest, fewer_ranges(table, batch_sizes), "accumulator", reduction)
        }
        if library.apply and forest.n_trees:
            walk = walking_schedules(forest, target)[_LEAVES]
            wanted["apply"] = forest, {(1, None): walk}, "leaf_number", reduction
        if contributing is not None:
            table = contribution_schedules(forest, "contributions")
            table = fewer_ranges(table, batch_sizes)
            wanted["predict_contribs"] = contributing, table, "contribution", "exact"
        prefix = f"{library.name}_k{number}"
        variants.append(_variant(target, wanted, prefix, texts))
    n = 0 if contributing is None else contributing.n_outputs
    library = replace(library, left_out=left_out, variants=tuple(variants), contribs=n)
    baseline = targets[0]  # of the library's own functions
    if baseline.arch == "x86_64":
        baseline = replace(Target.x86_64("v1"), triple=baseline.triple)
    if forest.hashed is not None:
        library = _encoding(library, forest.hashed, baseline, texts)
    parts = code.library_code(library)
    if python:
        parts += code.python_code(library)
    texts[:0] = (p if isinstance(p, str) else emit_llvm(p, baseline) for p in parts)
    if "windows" in baseline.triple:
        texts += heap_texts(baseline.triple)
    called = {name for text in texts for name in _MATHEMATICS.findall(text)}
    ours = called & {"exp", "expf"}
    if ours and re.search("linux|windows", baseline.triple) and _knows_exp():
        texts += _exponentials(library.name, targets)
        called -= ours
    return replace(library, libm=bool(called)), emit_object(texts, baseline)


#: Calls of the C library's mathematics.
_MATHEMATICS = re.compile(r"call \w+ @(expf?|log1pf?)\(")


#: What exp and expf of glibc return, with fused additions: where the nearest k is found
#: by a sum, and by an instruction of Arm.
_BY_SUM, _BY_INSTRUCTION = "83e28e91776240d1", "e76e8294045be140"


@cache
def _digest_of_exp() -> str:
    k = np.arange(8192)  # exact steps: NumPy's own differ from CPU to CPU
    x = np.append((k - 4209) * 0.1796875, np.ldexp(1 + k / 8192, k % 76 - 66))
    x = np.append(x, (16 * k - 65535.5) * (math.log(2) / 128))  # between two k
    with np.errstate(all="ignore"):
        results = exp(x).tobytes() + exp(x.astype(np.float32)).tobytes()
    return hashlib.sha256(results).hexdigest()[:16]


def _knows_exp() -> bool:
    """Tell whether this C library's exp and expf have the bits of ``exp.ll``."""
    return _digest_of_exp() in (_BY_SUM, _BY_INSTRUCTION)


def _exponentials(name: str, targets: Sequence[Target]) -> list[str]:
    """Return exp and expf, so that bits depend neither on the C library nor the CPU."""
    x86 = targets[0].arch == "x86_64"
    rounds = not x86 and _digest_of_exp() == _BY_INSTRUCTION
    nearest = {"sum": ";" * rounds, "round": ";" * (not rounds)}
    fused = {"fma": "llvm.fma.f64", "attributes": '"target-features"="+fma"' * x86}
    if not x86 or all("fma" in target.enabled for target in targets):
        return [filled("exp.ll", name=name, exp="exp", **fused, **nearest)]
    slow = {"exp": f"{name}.slow.exp", "fma": f"{name}.fma", "attributes": ""}
    fast = filled("exp.ll", name=name, exp=f"{name}.fast.exp", **fused, **nearest)
    choice = filled("exp_choice.ll", name=name)
    return [fast, filled("exp.ll", name=name, **slow, **nearest), choice]


def check_targets(targets: Sequence[Target]) -> None:
    if not targets:
        raise TargetError("target is empty; name at least one CPU.")
    for target in targets:
        if target.kind != "cpu":
            raise TargetError(
                f"{target} cannot be exported, because libraries run on CPUs; use "
                "target='cpu', 'x86-64', 'x86-64-v2' to 'x86-64-v4', or 'aarch64'."
            )
        if target.arch not in ("x86_64", "aarch64"):
            raise TargetError(
                f"Libraries cannot be made for {target.arch}; use kind='c', which "
                "writes portable C code."
            )
        if "windows" in target.triple and target.arch != "x86_64":
            raise TargetError("Libraries for Windows are of x86-64; use kind='c'.")
    if len({target.triple for target in targets}) > 1:
        kinds = ", ".join(sorted({target.triple for target in targets}))
        raise TargetError(
            f"A library has code for one instruction set and system, not for {kinds}; "
            "export once for each of them."
        )
    if targets[0].arch != Target.host().arch and targets[0].arch == "x86_64":
        raise TargetError(
            "Libraries for x86-64 can only be made on an x86-64 machine; export "
            "there, or use kind='c'."
        )


def fewer_ranges(
    table: SchedulesByRange, sizes: Sequence[int] | None
) -> dict[BatchRange, Schedule]:
    """Return a table without the ranges that contain no size; gaps are closed."""
    batches = {batch: batch for batch in table}
    ranges = sorted({table_at(batches, n) for n in sizes} if sizes else table)
    ends = [*(first - 1 for first, _ in ranges[1:]), None]
    return {
        (batch[0], end): table[batch] for batch, end in zip(ranges, ends, strict=True)
    }


def _contributing(forest: Forest) -> Forest | None:
    """Return the forest of the outputs whose contributions kernels write, or None."""
    if not forest.n_predicates:
        return None
    if not len(forest.cover):
        raise UnsupportedModelError(
            "contribs=True needs the number of training rows that reached each node, "
            f"but this {forest.source} model does not store it."
        )
    first, *others = parts_of(explained(forest))
    if others:
        raise UnsupportedModelError(
            f"contribs=True needs scratch for {forest.n_outputs:,} outputs of "
            f"{forest.n_features:,} features at once, which is too much; compute "
            "contributions in Python."
        )
    return first


def _variant(
    target: Target, wanted: Mapping[str, _Wanted], prefix: str, texts: list[str]
) -> contents.ExportedVariant:
    kernels: list[contents.ExportedKernel] = []
    ranges: dict[str, contents.Ranges] = {}
    attributes = machine_attributes(target)
    for function, (forest, table, element, reduction) in wanted.items():
        cache, numbers = HirCache(), dict[Schedule, int]()
        ordered = sorted(table.items())
        for schedule in dict.fromkeys(schedule for _, schedule in ordered):
            numbers[schedule] = len(kernels)
            symbol = f"{prefix}_{len(kernels)}"
            hir = build_hir(forest, schedule, reduction, cache, element=element)
            lowered = lower(hir, target, name=symbol, element=element)
            most = most_rows(lowered, SCRATCH_BYTES)
            kernel, scratch = place_scratch.run(
                lowered.kernel.function, 1 << 40 if most is None else most
            )
            texts.append(code.kernel_text(emit_llvm(kernel, target), *attributes))
            data = tuple(item.data for item in lowered.kernel.data)
            kernels.append(contents.ExportedKernel(symbol, data, most, scratch))
        ranges[function] = tuple(
            (last, numbers[schedule]) for (_, last), schedule in ordered
        )
    return contents.ExportedVariant(target, wanted[""][1], tuple(kernels), ranges)


def _encoding(
    library: Library, hashed: HashedCategories, target: Target, texts: list[str]
) -> Library:
    sizes, arrays = tables_of(hashed)
    known, symbol = dict(zip(SIZES, sizes, strict=True)), f"{library.name}.encoder"
    function, scratch = place_scratch.run(encoder(target), 1, known)
    text = emit_llvm(replace(function, name=symbol), target)
    texts.append(code.kernel_text(text, *machine_attributes(target)))
    kernel = contents.ExportedKernel(symbol, tuple(arrays), None, scratch)
    return replace(library, encoder=kernel, encoder_sizes=tuple(sizes))


def outputs_of(forest: Forest) -> tuple[dict[str, Steps], dict[str, str]]:
    """Return the functions of a library, and the reasons why others are left out.

    Every library has ``predict_raw``. ``predict`` corresponds to
    ``CompiledModule.predict``. Classifiers add ``predict_proba`` and ``predict_class``,
    which returns a position in ``classes_``.
    """
    if forest.scaling:
        raise UnsupportedModelError(
            f"The model multiplies its sums by {forest.scaling[0]!r}, and libraries "
            "only add leaf values; predict in Python."
        )
    if forest.aggregate != "sum":
        raise UnsupportedModelError(
            f"{not_sums(forest)} cannot be exported, because libraries only add leaf "
            "values; predict in Python."
        )
    names = [*contents.OUTPUT_OF][: 4 if forest.classifies else 2]
    functions: dict[str, Steps] = {}
    left_out = {}
    for name in names:
        arithmetic = steps_in_code(forest, contents.OUTPUT_OF[name])
        own = ("own", "graph")
        if arithmetic is None or FUNCTIONS[arithmetic.function].code in own:
            left_out[name] = (
                "the model does not name its objective"
                if forest.outputs.function == "unknown"
                else "the C library cannot reproduce the transform "
                f"{forest.outputs.name!r} bit for bit; predict in Python"
            )
        else:
            functions[name] = replace(arithmetic, by_columns=False)
    return functions, left_out
