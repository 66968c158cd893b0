"""Build a forest as a relocatable object with C functions, or as C source.

The kernels of every variant and range are lowered and linked with the library's own
functions. The result contains no Python, and making it needs only LLVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.defaults.contributions import contribution_schedules
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.means import explained
from skforge.compiler.ir.hir.nodes import PredictEnsemble, Reduction
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.outputs.steps import Output, Steps, proba_output, steps
from skforge.compiler.passes.lir import place_scratch
from skforge.compiler.pipeline import HirCache, build_hir, lower
from skforge.compiler.runtime.contributions import parts_of
from skforge.compiler.runtime.cpu.jit import emit_object, machine_attributes
from skforge.compiler.runtime.kernels import most_rows
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import TargetError, UnsupportedModelError
from skforge.exporters import contents
from skforge.exporters import llvm_wrapper as code
from skforge.exporters.c_source import source_text
from skforge.exporters.contents import ExportedKernel, ExportedVariant, Library, Table

#: Scratch bytes per thread above which a kernel splits a batch, if that helps.
SCRATCH_BYTES = 1 << 20
#: The batch range whose traversal schedule is used to find leaves.
_LEAVES: BatchRange = (128, 2048)


def export_object(
    forest: Forest,
    targets: Sequence[Target],
    tables: Sequence[Table | None],
    reduction: Reduction,
    name: str,
    batch_sizes: Sequence[int] | None = None,
    apply: bool = False,
    contribs: bool = False,
) -> tuple[Library, bytes]:
    """Compile a forest to an object with code for CPUs of one kind, best first.

    ``tables`` has the schedules for each target, None for the defaults. Ranges without
    any of ``batch_sizes`` are left out; ``apply`` adds a function that finds leaves,
    and ``contribs`` one of contributions.
    """
    check_targets(targets)
    outputs, left_out = outputs_of(forest)
    contributing = _contributing(forest) if contribs else None
    if contribs and contributing is None:
        left_out["predict_contribs"] = "no tree of the model tests a feature"
    texts: list[str] = []
    variants = []
    extra = _Extra(reduction, batch_sizes, apply, contributing)
    for number, (target, given) in enumerate(zip(targets, tables, strict=True)):
        table = default_schedules(forest, target, reduction) if given is None else given
        table = fewer_ranges(table, batch_sizes)
        prefix = f"{name}_k{number}"
        variants.append(_variant(forest, target, table, prefix, extra, texts))
    library = Library(
        name,
        forest,
        outputs,
        left_out,
        apply,
        tuple(variants),
        reduction,
        contribs=0 if contributing is None else contributing.n_outputs,
    )
    binary = emit_object([*code.library_code(library), *texts], _oldest(targets))
    return library, binary


def export_source(
    forest: Forest, name: str, apply: bool = False
) -> tuple[Library, bytes]:
    """Return a forest as portable C."""
    library = Library(name, forest, *outputs_of(forest), apply)
    return library, source_text(library).encode()


def check_targets(targets: Sequence[Target]) -> None:
    """Raise :class:`TargetError` unless one library can hold code for all targets."""
    if not targets:
        raise TargetError("target is empty; name at least one CPU.")
    for target in targets:
        if target.is_gpu:
            raise TargetError(
                f"{target} cannot be exported, because libraries run on CPUs; use "
                "target='cpu', 'x86-64', 'x86-64-v2' to 'x86-64-v4', or 'aarch64'."
            )
        if target.arch not in ("x86_64", "aarch64"):
            raise TargetError(
                f"Libraries cannot be made for {target.arch}; use kind='c', which "
                "writes portable C code."
            )
        if "windows" in target.triple:
            raise TargetError("Libraries for Windows cannot be made; use kind='c'.")
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
    table: Table, sizes: Sequence[int] | None
) -> dict[BatchRange, Schedule]:
    """Return a table without the ranges that contain no size; gaps are closed."""
    ranges = sorted(table.items())
    if sizes:
        firsts = [first for (first, _), _ in ranges]
        kept = {max(0, int(np.searchsorted(firsts, n, "right")) - 1) for n in sizes}
        ranges = [ranges[k] for k in sorted(kept)]
    firsts = [first for (first, _), _ in ranges]
    ends = [*(first - 1 for first in firsts[1:]), None]
    return {
        (first, end): schedule
        for first, end, (_, schedule) in zip(firsts, ends, ranges, strict=True)
    }


def _contributing(forest: Forest) -> Forest | None:
    """Return the forest of the outputs whose contributions kernels write.

    None: there is nothing to compute.
    """
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


@dataclass(frozen=True, slots=True)
class _Extra:
    """The options of an export that say which kernels a variant has."""

    reduction: Reduction
    batch_sizes: Sequence[int] | None
    apply: bool
    contributing: Forest | None


def _variant(
    forest: Forest,
    target: Target,
    table: Table,
    prefix: str,
    extra: _Extra,
    texts: list[str],
) -> ExportedVariant:
    """Lower every function's schedules and append their LLVM IR to ``texts``."""
    kernels: list[ExportedKernel] = []
    attributes = machine_attributes(target)

    def lowered(
        one: Forest, table: Table, element: Element, mode: Reduction
    ) -> contents.Ranges:
        """Lower each schedule of a table once; return the ranges."""
        cache, numbers, ranges = HirCache(), dict[Schedule, int](), []
        for (_, last), schedule in sorted(table.items()):
            if schedule not in numbers:
                numbers[schedule] = len(kernels)
                hir = build_hir(one, schedule, mode, cache, element=element)
                kernels.append(add(hir, element))
            ranges.append((last, numbers[schedule]))
        return tuple(ranges)

    def add(hir: PredictEnsemble, element: Element) -> ExportedKernel:
        symbol = f"{prefix}_{len(kernels)}"
        made = lower(hir, target, name=symbol, element=element)
        most = most_rows(made, SCRATCH_BYTES)
        function, scratch = place_scratch.run(
            made.kernel.function, 1 << 40 if most is None else most
        )
        texts.append(code.kernel_text(emit_llvm(function, target), *attributes))
        data = tuple(item.data for item in made.kernel.data)
        return ExportedKernel(symbol, data, most, scratch)

    ranges, whole = lowered(forest, table, "accumulator", extra.reduction), {}
    if extra.apply and forest.n_trees:
        walks: Table = {(1, None): walking_schedules(forest, target)[_LEAVES]}
        whole["apply"] = lowered(forest, walks, "leaf_number", extra.reduction)
    if extra.contributing is not None:
        given = contribution_schedules(forest, "contributions")
        given = fewer_ranges(given, extra.batch_sizes)
        part = extra.contributing
        whole["predict_contribs"] = lowered(part, given, "contribution", "exact")
    return ExportedVariant(target, table, tuple(kernels), ranges, whole)


def _oldest(targets: Sequence[Target]) -> Target:
    """Return the baseline target that the library's own functions are compiled for."""
    if targets[0].arch != "x86_64":
        return targets[0]
    return replace(Target.x86_64("v1"), triple=targets[0].triple)


def outputs_of(forest: Forest) -> tuple[dict[str, Steps], dict[str, str]]:
    """Return the functions of a library, and the reasons why others are left out.

    Every library has ``predict_raw``. ``predict`` corresponds to
    ``CompiledModule.predict``. Classifiers add ``predict_proba`` and ``predict_class``,
    which returns a position in ``classes_``.
    """
    if forest.aggregate != "sum":
        raise UnsupportedModelError(
            f"The aggregate function {forest.aggregate.upper()} of several trees "
            "cannot be exported, because libraries only add leaf values; predict in "
            "Python."
        )
    wanted: dict[str, Output] = {"predict_raw": "raw", "predict": "transformed"}
    if forest.classifies:
        wanted |= {"predict_proba": proba_output(forest), "predict_class": "labels"}
    found: dict[str, Steps] = {}
    left_out = {}
    for name, output in wanted.items():
        made = steps(forest, output)
        if made is None or made.function == "path_length":
            left_out[name] = (
                "the model does not name its objective"
                if forest.outputs.function == "unknown"
                else "the C library cannot reproduce the transform "
                f"{forest.outputs.name!r} bit for bit; predict in Python"
            )
        else:
            found[name] = made
    return found, left_out
