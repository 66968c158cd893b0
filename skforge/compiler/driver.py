"""The compiler's passes, in the order of one tuple a level, verified and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from skforge.compiler.backend import LirPass, backend, backend_of
from skforge.compiler.ir.hir.nodes import HirCache, PredictEnsemble, Reduction
from skforge.compiler.ir.hir.printer import print_hir
from skforge.compiler.ir.hir.verifier import verify as verify_hir
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.printer import print_mir
from skforge.compiler.ir.mir.verifier import verify_mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.layouts import base as representations
from skforge.compiler.lowering import lower_to_mir
from skforge.compiler.lowering.kernel import LoweredKernel
from skforge.compiler.passes.hir import (
    normalize_predicates,
    pad_trees,
    reorder_trees,
    tile_nodes,
)
from skforge.compiler.passes.lir import simplify
from skforge.compiler.passes.mir import (
    evaluate_predicates,
    expand_walks,
    insert_caches,
    interleave_walks,
    legalize_reductions,
    quantize_rows,
    specialize_depths,
    take_blocks,
    unroll_loops,
    unroll_walks,
    vectorize_trees,
)
from skforge.compiler.target import Target
from skforge.config import dump_levels, verify_every_pass
from skforge.exceptions import CompilerError, ScheduleError, warn
from skforge.forest.forest import Forest
from skforge.schedule import bound
from skforge.schedule.bind import bind
from skforge.schedule.directives import Quantize, ScheduleKind
from skforge.schedule.schedule import Schedule

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Context that the passes of a level may read besides the IR itself."""

    hir: PredictEnsemble
    vector_lanes: int
    shared_bytes: int = 0  # of a GPU's block


class NamedPass(NamedTuple):
    name: str
    run: Callable[[mir.Function, Stage], mir.Function]


def _backend_pass(name: str) -> NamedPass:
    """Return a pass that only some machines have."""

    def run(function: mir.Function, stage: Stage) -> mir.Function:
        own = backend(stage.hir.nest.kind).mir_passes.get(name)
        return own(function, stage.hir, stage.shared_bytes) if own else function

    return NamedPass(name, run)


MIR_PASSES = (
    NamedPass("insert-caches", lambda f, s: insert_caches.run(f, s.hir)),
    NamedPass("legalize-reductions", lambda f, s: legalize_reductions.run(f, s.hir)),
    _backend_pass("warp-sums"),
    _backend_pass("keep-sums"),
    NamedPass("vectorize-trees", lambda f, s: vectorize_trees.run(f)),
    NamedPass("evaluate-predicates", lambda f, s: evaluate_predicates.run(f)),
    NamedPass("quantize-rows", lambda f, s: quantize_rows.run(f, s.hir)),
    NamedPass("take-blocks", lambda f, s: take_blocks.run(f, s.hir)),
    NamedPass("specialize-depths", lambda f, s: specialize_depths.run(f, s.hir)),
    NamedPass("unroll-walks", lambda f, s: unroll_walks.run(f)),
    NamedPass("unroll-loops", lambda f, s: unroll_loops.run(f)),
    _backend_pass("chunk-leaves"),
    NamedPass("interleave-walks", lambda f, s: interleave_walks.run(f, s.vector_lanes)),
    NamedPass("expand-walks", lambda f, s: expand_walks.run(f)),
)


LIR_PASSES = (LirPass("simplify", lambda f, k: simplify.run(f)),)


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A kernel lowered to LIR, with every level it went through."""

    hir: PredictEnsemble
    stages: dict[str, mir.Function]  # MIR after each pass, "lower-to-mir" first
    lir_stages: dict[str, lir.Function]  # LIR likewise, "lower-to-lir" first
    kernel: LoweredKernel

    @property
    def levels(self) -> tuple[str, ...]:
        """What ``text`` prints."""
        return ("hir", "mir", "lir", *self.stages, *self.lir_stages)

    def text(self, level: str) -> str:
        if level == "hir":
            return print_hir(self.hir)
        if level == "lir":
            return print_lir(self.kernel.function)
        if level in self.lir_stages:
            return print_lir(self.lir_stages[level])
        return print_mir(self.stages["expand-walks" if level == "mir" else level])


def build_hir(
    forest: Forest,
    schedule: Schedule,
    reduction: Reduction,
    tiled: HirCache | None = None,
    kind: ScheduleKind = "cpu",
    element: mir.Element = "accumulator",
    hashes: bool = False,
) -> PredictEnsemble:
    """Bind a schedule to a kind of target and lay out the trees as it asks.

    With ``hashes``, the kernel makes its rows of those with hashes of categories.
    Raises ScheduleError if schedule, forest and representation do not fit.
    """
    nest = bind(schedule, forest.n_trees, kind)
    with _show_nest(nest):
        cache = HirCache() if tiled is None else tiled
        normal, comparison = cache.once(
            ("normal",), lambda: normalize_predicates.run(forest)
        )
        # Complete tiles are made of single nodes, by the representation.
        size = 1 if nest.tile_kind == "complete" else nest.tile_nodes
        tiles = cache.once(
            ("tiles", size, nest.tile_kind if size > 1 else None),
            lambda: tile_nodes.run(normal, size, nest.tile_kind),
        )
        if nest.reorder_trees:
            tiles = reorder_trees.run(tiles)
        tiles = pad_trees.run(tiles, pad_trees.required_depths(nest, tiles), nest)
        representation = representations.get(nest.representation)
        if element not in representation.elements:
            raise ScheduleError(
                f'represent("{nest.representation}") computes '
                f"{_PURPOSE[representation.elements[0]]}, not {_PURPOSE[element]}; use "
                "another representation."
            )
        codes = None
        if bound.marked(nest.loops, Quantize):
            plan = representation.plan_codes
            codes = cache.once(("codes", plan), lambda: plan(normal))
        how = reduction, comparison, codes, cache, hashes
        hir = PredictEnsemble(normal, tiles, nest, *how)
        representation.check_tiles(nest)
        in_lanes = bound.vectorizes_trees(nest.loops)
        in_blocks = not in_lanes and representation.takes_blocks(nest)
        if in_lanes:
            representations.RowRepresentation.of(hir)
        elif not in_blocks and not (
            nest.on_grid and representation.takes_rows_by_thread
        ):
            representations.WalkRepresentation.of(hir)
        representation.check(hir)
        if in_lanes or in_blocks:
            # They refuse schedules; `lower` goes on from there. Leaves have no sums.
            summed: mir.Element = "accumulator" if element == "leaf_number" else element
            if (key := _checked_key(hir, summed)) not in cache:
                cache[key] = _form_blocks(hir, summed)
        _verify("hir", verify_hir, hir)
        _dump("hir", print_hir, hir)
        return hir


@contextmanager
def _show_nest(nest: bound.BoundNest) -> Iterator[None]:
    """Draw the loops in errors that lack them, and mark the one named first."""
    try:
        yield
    except ScheduleError as error:
        if not error.nest:
            lines = enumerate(bound.every_loop(nest.loops), 1)
            at = {error.why.find(f'"{loop.name}"'): line for line, loop in lines}
            at[-1] = 0  # of all that is not named
            first = min(at.keys() - {-1}, default=-1)
            error.nest, error.at = str(nest), at[first]
        raise


_PURPOSE: dict[mir.Element, str] = {
    "accumulator": "predictions",
    "leaf_number": "leaf numbers",
    "contribution": "contributions",
    "interaction": "interaction values",
    "pattern": "counts of patterns",
}


def lower(
    hir: PredictEnsemble,
    target: Target,
    *,
    element: mir.Element = "accumulator",
    name: str = "predict",
) -> Lowered:
    """Lower HIR to LIR; raise CompilerError if the verifier rejects a pass's IR."""
    with _show_nest(hir.nest):
        _check_dump_levels()
        row_bits = 8 * hir.forest.threshold.dtype.itemsize
        lanes = max(2, target.vector_bits // row_bits)
        stage = Stage(hir, lanes, target.shared_bytes)
        checked = hir.shared.pop(_checked_key(hir, element), None)
        stages = checked or {"lower-to-mir": lower_to_mir.run(hir, element)}
        function = stages["lower-to-mir"]
        _verify("lower-to-mir", verify_mir, function)
        _dump("lower-to-mir", print_mir, function)
        legal = False
        for step in MIR_PASSES:
            lowered = stages.get(step.name) or step.run(function, stage)
            legal = legal or step.name == "legalize-reductions"
            check = partial(verify_mir, legal=legal, final=step is MIR_PASSES[-1])
            _verify(step.name, check, lowered)
            _dump(step.name, print_mir, lowered, lowered == function)
            stages[step.name] = function = lowered
        _dump("mir", print_mir, function)
        own = backend_of(target)
        layout = _lay_out(hir, function.body, target)
        kernel = own.lower(function, hir, layout, target=target, name=name)
        after = _finished(kernel, (*LIR_PASSES, *own.lir_passes))
        return Lowered(
            hir, stages, after, replace(kernel, function=[*after.values()][-1])
        )


def _lay_out(
    hir: PredictEnsemble, body: mir.Body, target: Target
) -> representations.AnyLayout:
    by_thread = backend_of(target).lay_out_rows(hir)
    if by_thread is not None:
        return by_thread
    if any(loop.in_order for loop in loops_in(body)):
        return representations.RowRepresentation.of(hir).lay_out_rows(hir, target)
    block = take_blocks.block_rows(body)
    if block is not None:
        return representations.BlockRepresentation.of(hir).lay_out_blocks(
            hir, target, block
        )
    return representations.WalkRepresentation.of(hir).lay_out(hir)


def _finished(
    kernel: LoweredKernel, passes: tuple[LirPass, ...]
) -> dict[str, lir.Function]:
    function = kernel.function
    stages = {"lower-to-lir": function}
    _verify("lower-to-lir", verify_lir, function)
    _dump("lower-to-lir", print_lir, function)
    for step in passes:
        stages[step.name] = function = step.run(function, kernel)
        _verify(step.name, verify_lir, function)
    _dump("lir", print_lir, function)
    return stages


def _checked_key(hir: PredictEnsemble, element: mir.Element) -> tuple[object, ...]:
    return "checked", hir.nest, hir.reduction, element


def _form_blocks(hir: PredictEnsemble, element: mir.Element) -> dict[str, mir.Function]:
    """Run the passes that refuse schedules of blocks and lanes; they need no target."""
    function = lower_to_mir.run(hir, element)
    stages = {"lower-to-mir": function}
    for step in MIR_PASSES:
        stages[step.name] = function = step.run(function, Stage(hir, vector_lanes=2))
        if step.name == "take-blocks":
            break
    return stages


def _verify(name: str, check: Callable[[T], None], ir: T) -> None:
    if not verify_every_pass():
        return
    try:
        check(ir)
    except CompilerError as error:
        raise CompilerError(f"after pass {name!r}: {error}") from error


def _check_dump_levels() -> None:
    passes = ["lower-to-mir", *(p.name for p in MIR_PASSES), "lower-to-lir"]
    known = ("all", "hir", "mir", "lir", *passes)
    if unknown := dump_levels().difference(known):
        warn(
            f"SKFORGE_DUMP asks for {min(unknown)!r}, which is not a level printed "
            f"while compiling; use {', '.join(known)}."
        )


def _dump(name: str, text: Callable[[T], str], ir: T, unchanged: bool = False) -> None:
    wanted = dump_levels()
    if name in wanted or "all" in wanted:
        print(f"-- {name}" + (" (unchanged)" if unchanged else f"\n{text(ir)}"))
