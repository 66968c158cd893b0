"""Lower reductions to LIR: load-add-store, ordered sums of slots, fixed point to float.

SilvanForge §5.1, Treebeard draft §4.1.1. Legalisation has made every reduce safe, so
each becomes a plain load-add-store, or an atomic add where the schedule asks for one.
``vector_reduce`` adds as many consecutive elements at once as its width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import mul

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b, parts
from skforge.compiler.ir.lir.nodes import F64, I64, Buffer, Scalar, Value, Vec
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.lowering.kernel import ArrayView, LoweringState

#: Vector leaves with more chunks than this are added in a loop, not unrolled.
MAX_UNROLLED_CHUNKS = 8


class ReductionLowering:
    def __init__(self, kernel: LoweringState) -> None:
        self.k = kernel

    # ------------------------------------------------------------ arrays

    def result_view(self) -> ArrayView:
        return ArrayView(self.k.result, self.sizes(self.k.function.result))

    def sizes(self, array: mir.NamedArray) -> tuple[Value, ...]:
        k = self.k
        return tuple(k.size(k.n_outputs if n is None else n) for n in array.dims)

    def alloc(self, stmt: mir.AllocArray) -> None:
        dims = self.sizes(stmt.array)
        total = self.elements(dims)
        space: lir.Space = "shared" if stmt.array.shared else "global"
        name = stmt.array.name
        buffer = b.alloc(name, self.k.sum_type, total, space, alignment=64)
        self.k.arrays[name] = ArrayView(buffer, dims)
        if stmt.zero:
            zero = self._zero()
            with b.loop(total) as i:
                buffer[i] = zero

    def elements(self, dims: tuple[Value, ...]) -> Value:
        return reduce(mul, dims)

    def _zero(self, type_: lir.Type | None = None) -> Value:
        return b.const(0.0 if self.k.sum_type.is_float else 0, type_ or self.k.sum_type)

    def _offset(self, view: ArrayView, indices: tuple[mir.Index, ...]) -> Value:
        """Return the buffer index of an element; ``Outputs`` counts as output 0."""
        k = self.k
        if view.lanes:  # the array holds only the thread's own slot and row
            last = indices[-1]
            output = b.const(0) if isinstance(last, mir.Outputs) else k.index(last)
            return self.element_index(view, output)
        total: Value | None = None
        for n, dim in enumerate(view.dims):
            index = indices[n] if n < len(indices) else mir.Affine()
            all_ = isinstance(index, mir.Outputs)
            value = b.const(0) if isinstance(index, mir.Outputs) else k.index(index)
            if total is None:
                total = value
                continue
            scaled = total * dim
            is_zero = all_ or index == mir.Affine()
            total = scaled if is_zero else scaled + value
        assert total is not None
        return self.element_index(view, total)

    def element_index(self, view: ArrayView, i: Value) -> Value:
        i = i * view.step
        return i if view.first is None else view.first + i

    # ------------------------------------------------------------ reduce

    def reduce(self, stmt: mir.Reduce) -> None:
        value = self.k.values[stmt.value]
        key = (stmt.target, stmt.indices)
        if key in self.k.carried:
            self.k.carried[key] = self.k.carried[key] + value
            return
        view = self.k.arrays[stmt.target]
        at = self._offset(view, stmt.indices)
        if isinstance(stmt.indices[-1], mir.Outputs):
            self._add_vector_leaf(view, at, value, stmt.atomic)
        else:
            self._increase(view.buffer, at, value, stmt.atomic)

    def _increase(
        self, buffer: Buffer, index: Value, value: Value, atomic: bool = False
    ) -> None:
        if atomic and index.type.lanes:
            for lane in range(index.type.lanes):
                pair = b.extract(index, lane), b.extract(value, lane)
                b.emit(lir.AtomicAdd(buffer, *pair))
        elif atomic:
            b.emit(lir.AtomicAdd(buffer, index, value))
        else:
            buffer[index] = buffer[index] + value

    def element(self, stmt: mir.Reduce, n: int | None = None) -> tuple[Buffer, Value]:
        view = self.k.arrays[stmt.target]
        return view.buffer, self._offset(view, stmt.indices[:n])

    def _add_vector_leaf(
        self, view: ArrayView, index: Value, leaf: Value, atomic: bool
    ) -> None:
        values, target = self.k.leaf_values(), view.buffer
        if index.type.lanes or atomic:
            with b.loop(self.k.n_outputs) as j:
                here, there = index + j, leaf + j
                self._increase(target, here, values[there], atomic)
            return
        for j, type_ in self._outputs():
            here = index + j * view.step
            there = leaf + j
            target[here] = target[here, type_] + values[there, type_]

    def _lanes(self, scalar: Scalar) -> int:
        return max(1, self.k.target.vector_bits // (8 * scalar.bytes))

    def _outputs(self) -> Iterator[tuple[Value, lir.Type]]:
        scalar, n = self.k.sum_type, self.k.n_outputs
        most, start = self._lanes(scalar), 0
        if n // most > MAX_UNROLLED_CHUNKS:
            start = n // most * most
            with b.loop(0, start, most) as i:
                yield i, Vec(scalar, most) if most > 1 else scalar
        for first, lanes in parts(start, n, most):
            yield b.const(first), Vec(scalar, lanes) if lanes > 1 else scalar

    def _sums(
        self, count: Value, width: int | None
    ) -> Iterator[tuple[Value, lir.Type]]:
        scalar, start = self.k.sum_type, b.const(0)
        if width is not None and width > 1:
            whole = count // width * width
            with b.loop(start, whole, width) as i:
                yield i, Vec(scalar, width)
            start = whole
        with b.loop(start, count) as i:
            yield i, scalar

    def store_leaf(self, stmt: mir.StoreLeaf) -> None:
        view = self.k.arrays[stmt.target]
        value = self.k.values[stmt.value]
        at = self._offset(view, stmt.indices)
        if not isinstance(stmt.indices[-1], mir.Outputs):
            view.buffer[at] = value
            return
        values = self.k.leaf_values()
        if at.type.lanes:
            with b.loop(self.k.n_outputs) as j:
                here, there = at + j, value + j
                view.buffer[here] = values[there]
            return

        for j, type_ in self._outputs():
            there = value + j
            here = at + j * view.step
            view.buffer[here] = values[there, type_]

    # ------------------------------------------------------------ whole arrays

    def _length(self, rows: mir.Range) -> Value:
        return self.k.bound(rows.bounds).max(0)

    def fill(self, stmt: mir.Fill) -> None:
        start = self.k.affine(stmt.rows.start)
        view = self.k.arrays[stmt.target]
        if self.k.n_outputs == 1:
            base = b.const(float(self.k.hir.forest.base[0]), self.k.float_type)
            with b.loop(self._length(stmt.rows)) as i:
                view.buffer[start + i] = base
            return
        base_buffer = self.k.base()
        with b.loop(self._length(stmt.rows)) as i:
            first = (start + i) * self.k.n_outputs
            with b.loop(self.k.n_outputs) as j:
                view.buffer[first + j] = base_buffer[j]

    def reduce_dimension(self, stmt: mir.ReduceDimension) -> None:
        target, source = self.k.arrays[stmt.target], self.k.arrays[stmt.source]
        first = self._offset(target, (stmt.rows.start,))
        from_ = self.k.affine(stmt.source_rows)
        slot = self.elements(source.dims[1:])  # from one slot to the next
        extent, length = self.k.size(stmt.extent), self._length(stmt.rows)
        if stmt.by_output:  # each tree's leaf is added to the tree's output
            outputs = self.k.tree_outputs(by_position=False)
            with b.loop(length) as i:
                here, at = first + i * self.k.n_outputs, from_ + i
                with b.loop(extent) as n:
                    place = here + outputs[n].to(I64)
                    self._increase(target.buffer, place, source.buffer[n * slot + at])
            return
        elements = length * self.k.n_outputs
        from_ = from_ * self.k.n_outputs
        for i, type_ in self._sums(elements, stmt.vector_width):
            here = first + i
            at = from_ + i
            total = [target.buffer[here, type_]]
            with b.loop(extent, carry=total) as n:
                total[0] = total[0] + source.buffer[n * slot + at, type_]
            target.buffer[here] = total[0]

    def reduce_dimension_inplace(self, stmt: mir.ReduceDimensionInplace) -> None:
        view = self.k.arrays[stmt.array]
        assert view.step == 1  # per-thread arrays have no staged sums
        first = self._offset(view, stmt.prefix)
        slot: Value = b.const(1)
        for dim in view.dims[len(stmt.prefix) + 1 :]:
            slot = slot * dim
        extent = self.k.size(stmt.extent)
        for i, type_ in self._inplace(stmt):
            here = first + i
            zero = self._zero(type_)
            total = [view.buffer[here, type_]]
            with b.loop(1, extent, carry=total) as n:
                place = n * slot + here
                value = view.buffer[place, type_]
                view.buffer[place] = zero
                total[0] = total[0] + value
            view.buffer[here] = total[0]

    def _inplace(
        self, stmt: mir.ReduceDimensionInplace
    ) -> Iterator[tuple[Value, lir.Type]]:
        elements = self._length(stmt.rows) * self.k.n_outputs
        return self._sums(elements, stmt.vector_width)

    def finish(self, stmt: mir.Finish) -> None:
        k = self.k
        source, target = k.arrays[stmt.source], k.arrays[mir.RESULT]
        first = self._offset(target, (stmt.rows.start,))
        from_ = k.affine(stmt.source_rows) * k.n_outputs
        base = k.model_buffer("base_f64", k.hir.forest.base.astype(np.float64))
        scale = b.const(float(np.ldexp(1.0, -k.scale_exponent)), F64)
        with b.loop(self._length(stmt.rows)) as i:
            offset = i * k.n_outputs
            with b.loop(k.n_outputs) as j:
                at = offset + j
                value = source.buffer[from_ + at].to(F64) * scale
                value = (base[j] + value).to(k.float_type)
                target.buffer[first + at] = value
