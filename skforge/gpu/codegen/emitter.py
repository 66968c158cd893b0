"""Emit LIR with grids as CUDA/HIP C++ text and a plan for the host.

Each ``Grid`` becomes one kernel ``function_K``; the code around grids becomes a
``HostPlan``. Kernels take only the parameters they use, pointers before scalars, and
constants are written inline. Model arrays are data, so the text does not grow with the
number of trees.

Every thread runs the code outside regions, and a barrier follows each region. The
barrier after the last region of a kernel is omitted, because the block runs nothing
after it. A second barrier separates a load, outside regions, from memory that regions
write, from the next region; otherwise a fast thread could overwrite a value before a
slow thread loads it. Both barriers are legal because control around regions is uniform.

Schedules decide what is unrolled, so compilers are told not to unroll loops. The
exception is short loops over private arrays: unrolling turns their indices into
constants and the arrays into registers.

An atomic addition of f32 to global memory treats subnormal numbers as zeros on NVIDIA,
in its operands and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import walk
from skforge.compiler.ir.lir.operations import HOST_OPS
from skforge.compiler.target import Target
from skforge.gpu.codegen import ops
from skforge.gpu.codegen.host_plan import HostPlan, Launch, evaluate
from skforge.gpu.codegen.writer import PRELUDE, CudaWriter, Host, memory_text


def _emit_host(host: Host, body: lir.Body) -> None:
    for stmt in body:
        match stmt:
            case lir.Let(value=value, op=op):
                _note(host, value, op)
            case lir.Alloc(buffer=buffer):
                if buffer.space != "global":
                    raise host.fail(
                        f"@{buffer.name} in {buffer.space} memory, outside launches."
                    )
                host.buffers[buffer.name] = buffer
                host.scratch.add(buffer.name)
            case lir.For():
                host.note_loop(stmt)
                host.bind(stmt.var, *stmt.params)
                _emit_host(host, stmt.body)
                host.bind(*stmt.results)
            case lir.Grid():
                host.launches[stmt.dims[0][1].name] = emit_kernel(host, stmt)
            case lir.Transfer():
                pass
            case _:
                raise host.fail(f"{type(stmt).__name__} outside a launch.")


def _note(host: Host, value: lir.Value, op: lir.Op) -> None:
    if not isinstance(op, (lir.Const, *HOST_OPS)):
        raise host.fail(f"{type(op).__name__} (%{value.name}) outside a launch.")
    read = walk.operands(op)
    if read and any(getattr(v.type, "is_float", True) for v in (value, *read)):
        raise host.fail(f"%{value.name} outside a launch is computed of floats.")
    numbers = [host.constants[v.name] for v in read if v.name in host.constants]
    if isinstance(op, lir.Const):
        host.constants[value.name] = op.value
    elif len(numbers) == len(read):
        host.constants[value.name] = evaluate(value, op, [*map(int, numbers)])
    else:
        host.bind(value)
        if isinstance(op, lir.Binary):
            host.note_binary(value, op)
        elif isinstance(op, lir.Convert):
            host.note_multiple(value, host.multiple_of(op.a))


# Loops over private arrays are unrolled up to this many iterations.
_UNROLLED = 32

#: Shared memory of a multiprocessor, in bytes, that each resident block costs.
RESERVED_SHARED = 1 << 10
#: Threads of a multiprocessor above which registers limit occupancy.
MANY_THREADS = 1536
#: Threads of a multiprocessor with which each has 128 and 64 registers.
ROOMY_THREADS = 512, 1024
#: Blocks of fewer threads are unrestricted: each thread has much to do.
FEW_THREADS = 64


def emit_gpu(function: lir.Function, target: Target) -> HostPlan:
    """Return the kernels of a verified function and how the host runs them.

    The text is the same for all GPUs except for their limits. Raises CompilerError if
    something cannot be expressed on a GPU.
    """
    host = Host(function, target)
    _emit_host(host, function.body)
    return HostPlan("\n".join([PRELUDE, *host.kernels]), function, host.launches)


def emit_kernel(host: Host, grid: lir.Grid) -> Launch:
    w = CudaEmitter(host, grid)
    kernel = f"{w.names.new(host.function.name)}_{len(host.kernels)}"
    for dim, var, _ in grid.dims:
        (name,) = w.new(var)
        w.line(f"const {var.type.element.name} {name} = SKF_BID_{dim[-1].upper()};")
    w.block_body(grid.body, last=True)
    if w.shared_bytes > host.target.shared_bytes:
        raise host.fail(
            f"kernel {kernel} needs {w.shared_bytes} bytes of shared memory; a block "
            f"on {host.target.cpu} has {host.target.shared_bytes}."
        )
    threads = w.threads or (1, 1, 1)
    buffers = [b for name, b in host.buffers.items() if name in w.buffer_args]
    values = [v for name, v in host.values.items() if name in w.value_args]
    params = [
        f"{'' if b.name in w.written else 'const '}"
        f"{memory_text(b.element)}* __restrict__ {w.buffer_args[b.name]}"
        for b in buffers
    ]
    params += [f"const {v.type.element.name} {w.value_args[v.name]}" for v in values]
    shared = ["  SKF_DYN_SMEM(skf_shared);"] if w.shared_bytes else []
    text = [
        f"SKF_KERNEL({_bounds(host.target, threads, w.shared_bytes)})",
        f"{kernel}(",
        ",\n".join(f"    {param}" for param in params) + ")",
        "{",
        *shared,
        *w.lines,
        "}",
    ]
    host.kernels.append("\n".join(text) + "\n")
    return Launch(kernel, threads, w.shared_bytes, (*buffers, *values))


def _bounds(target: Target, threads: tuple[int, int, int], shared: int) -> str:
    """Return launch bounds: the threads, and the least resident blocks if it helps.

    Compilers save registers, and spill some, for threads that shared memory has no room
    for anyway. Told that 1024 or 512 threads must fit, they use up to 64 or 128.
    """
    n = threads[0] * threads[1] * threads[2]
    fit = (target.shared_bytes + RESERVED_SHARED) // (shared + RESERVED_SHARED)
    if not shared or n < FEW_THREADS or fit * n > MANY_THREADS:
        return str(n)
    few = n <= ROOMY_THREADS[0] // 2 and fit * n <= ROOMY_THREADS[0]
    return f"{n}, {max(1, ROOMY_THREADS[0 if few else 1] // n)}"


class CudaEmitter(CudaWriter):
    def __init__(self, host: Host, grid: lir.Grid) -> None:
        super().__init__(host, walk.written(grid.body))
        # Control statements with a region inside.
        self._regions = {
            id(s) for s in walk.statements(grid.body) if walk.holds_region(s)
        }

    # ------------------------------------------------------------ a block's level

    def block_body(self, body: lir.Body, last: bool = False) -> None:
        regions = [s for s in body if self._has_region(s)] if last else []
        final = regions[-1] if regions else None
        loaded = False
        for stmt in body:
            if self._has_region(stmt) and loaded:
                self.line("SKF_BARRIER();")
                loaded = False
            if isinstance(stmt, lir.BlockRegion):
                self._region(stmt)
                if stmt is not final:
                    self.line("SKF_BARRIER();")
                continue
            self.emit(stmt)
            if not self._has_region(stmt):
                loaded = loaded or self._loads_written(stmt)
        if loaded and not last:
            self.line("SKF_BARRIER();")

    def _has_region(self, stmt: lir.Stmt) -> bool:
        return isinstance(stmt, lir.BlockRegion) or id(stmt) in self._regions

    def _loads_written(self, stmt: lir.Stmt) -> bool:
        return any(
            isinstance(inner, lir.Let)
            and any(b.name in self.written for b in walk.buffers_of(inner.op))
            for inner in walk.statements((stmt,))
        )

    def _region(self, stmt: lir.BlockRegion) -> None:
        counts = {"x": 1, "y": 1, "z": 1}
        self.open("{")
        for dim, var, count in stmt.dims:
            number = self.constant_of(count)
            if number is None:
                raise self.fail(f"{dim} of a region has no constant size.")
            axis = dim[-1]
            counts[axis] = int(number)
            (name,) = self.new(var)
            type_ = var.type.element.name
            self.line(f"const {type_} {name} = SKF_TID_{axis.upper()};")
        threads = (counts["x"], counts["y"], counts["z"])
        n_threads = threads[0] * threads[1] * threads[2]
        if not 1 <= n_threads <= self.host.target.max_threads_per_block:
            raise self.fail(f"a block of {' × '.join(map(str, threads))} threads.")
        if self.threads not in (None, threads):
            raise self.fail(
                f"regions of {self.threads} and {threads} threads in one launch."
            )
        self.threads = threads
        self.emit_body(stmt.body)
        self.close()

    # ------------------------------------------------------------ statements

    def emit_body(self, body: lir.Body) -> None:
        for stmt in body:
            self.emit(stmt)

    def _inner(self, owner: lir.Stmt, body: lir.Body) -> None:
        if id(owner) in self._regions:
            self.block_body(body)
        else:
            self.emit_body(body)

    def emit(self, stmt: lir.Stmt) -> None:
        write = _STATEMENTS.get(type(stmt))
        if write is None:
            raise self.fail(f"{type(stmt).__name__} inside a launch.")
        write(self, stmt)

    # ------------------------------------------------------------ control

    def _declare(
        self, values: Sequence[lir.Value], inits: Sequence[lir.Value] | None = None
    ) -> None:
        for k, value in enumerate(values):
            starts = self.lanes(inits[k]) if inits is not None else ()
            type_ = value.type.element.name
            for lane, name in enumerate(self.new(value)):
                start = f" = {starts[lane]}" if starts else ""
                self.line(f"{type_} {name}{start};")

    def _assign(
        self, targets: Sequence[lir.Value], sources: Sequence[lir.Value]
    ) -> None:
        """Assign variables in parallel: none is overwritten before it is read."""
        pairs = [
            (name, text, target.type.element.name)
            for target, source in zip(targets, sources, strict=True)
            for name, text in zip(self.lanes(target), self.lanes(source), strict=True)
            if name != text
        ]
        changed = {name for name, _, _ in pairs}
        lines = []
        for name, text, type_ in pairs:
            if text in changed:
                name_of_old = self.names.new("next")
                self.line(f"const {type_} {name_of_old} = {text};")
                text = name_of_old
            lines.append(f"{name} = {text};")
        for line in lines:
            self.line(line)

    def _alias(self, results: Sequence[lir.Value], params: Sequence[lir.Value]) -> None:
        for result, param in zip(results, params, strict=True):
            self.bind(result, self.lanes(param))

    def _for(self, stmt: lir.For) -> None:
        lo, hi, step = (self.use(v) for v in (stmt.lo, stmt.hi, stmt.step))
        self._declare(stmt.params, stmt.inits)
        (var,) = self.new(stmt.var)
        self.note_loop(stmt)
        self.line("SKF_UNROLL" if self._unrolls(stmt) else "SKF_LOOP")
        type_ = stmt.var.type.element.name
        self.open(f"for ({type_} {var} = {lo}; {var} < {hi}; {var} += {step}) {{")
        self._inner(stmt, stmt.body)
        self._assign(stmt.params, stmt.yields)
        self.close()
        self._alias(stmt.results, stmt.params)

    def _unrolls(self, stmt: lir.For) -> bool:
        bounds = [self.constant_of(v) for v in (stmt.lo, stmt.hi, stmt.step)]
        if any(number is None for number in bounds):
            return False
        lo, hi, step = (int(number or 0) for number in bounds)
        if len(range(lo, hi, max(1, step))) > _UNROLLED:
            return False
        inside = walk.statements(stmt.body)
        nodes = (inner.op if isinstance(inner, lir.Let) else inner for inner in inside)
        accesses = (node for node in nodes if isinstance(node, lir.Load | lir.Store))
        return any(access.buffer.space == "private" for access in accesses)

    def _while(self, stmt: lir.While) -> None:
        self._declare(stmt.params, stmt.inits)
        self.line("SKF_LOOP")
        self.open("for (;;) {")
        self._inner(stmt, stmt.before)
        self.line(f"if (!{self.use(stmt.cond)}) break;")
        self._inner(stmt, stmt.body)
        self._assign(stmt.params, stmt.yields)
        self.close()
        self._alias(stmt.results, stmt.params)

    def _if(self, stmt: lir.If) -> None:
        cond = self.use(stmt.cond)
        self._declare(stmt.results)
        self.open(f"if ({cond}) {{")
        self._inner(stmt, stmt.then)
        self._assign(stmt.results, stmt.then_yields)
        if stmt.orelse or stmt.else_yields:
            self.close("} else {")
            self.indent += "  "
            self._inner(stmt, stmt.orelse)
            self._assign(stmt.results, stmt.else_yields)
        self.close()

    def _switch(self, stmt: lir.Switch) -> None:
        selector = self.use(stmt.selector)
        self._declare(stmt.results)
        self.open(f"switch ({selector}) {{")
        yields = stmt.yields or ((),) * len(stmt.cases)
        for number, (case, ends) in enumerate(zip(stmt.cases, yields, strict=True)):
            last = number == len(stmt.cases) - 1
            self.open("default: {" if last else f"case {number}: {{")
            self._inner(stmt, case)
            self._assign(stmt.results, ends)
            self.line("break;")
            self.close()
        self.close()


#: Writes a statement of a thread.
_STATEMENTS: dict[type[Any], Callable[[CudaEmitter, Any], None]] = {
    lir.Let: ops.emit_let,
    lir.Store: ops.emit_store,
    lir.Scatter: ops.emit_scatter,
    lir.AtomicAdd: ops.emit_atomic_add,
    lir.Prefetch: ops.emit_prefetch,
    lir.Alloc: CudaEmitter.alloc,
    lir.For: CudaEmitter._for,
    lir.While: CudaEmitter._while,
    lir.If: CudaEmitter._if,
    lir.Switch: CudaEmitter._switch,
}
