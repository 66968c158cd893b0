"""Emit LIR as LLVM IR text.

Every kernel becomes one function with the same C signature::

    void name(const int64_t *args, pfor_t pfor, int64_t n_threads)

    args       one 8-byte slot for each LIR parameter, in order: a buffer's address, an
               integer or bool as int64, a float of either width as the bits of a double
    pfor       void pfor(void (*body)(void *ctx, int64_t begin, int64_t end),
                         void *ctx, int64_t count, int64_t n_threads)
               runs ``body`` over 0 … count in disjoint ranges; never called (and may be
               null) when n_threads is 1
    n_threads  how many ranges a ParallelFor may run at once

A ``ParallelFor`` body becomes an internal function ``name.pK``; the values it reads are
passed in a struct on the caller's stack. A ``Routine`` has the C signature of its
parameters. Structured control becomes basic blocks and phis, constants are written
inline, and nothing is marked fast, contracted or reassociable. The text hardly depends
on the CPU; the target machine that compiles it provides the CPU's features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from string import Template
from typing import Any

from skforge.compiler.codegen.llvm import ops, writer
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.system import heap_texts
from skforge.compiler.target import Target
from skforge.runtime.loading import RELEASE

# ---------------------------------------------------------------- pools of scratch

# The C library often unmaps a block of 100 KB when it is freed, and the next call
# faults it in again: 10 to 20 us, where a batch of 64 rows takes 5. So each function of
# a kernel keeps up to ``KEPT`` blocks, taken and returned by one atomic operation each.
# A thread looks for the block that it gave back: another's lies in the cache of another
# core. ``release`` frees all blocks when the code is unloaded.

#: Blocks kept for each function, a power of two; further threads allocate their own.
KEPT = 64


def pool_function(kernel: str, verb: str, pool: int) -> str:
    return f"@{writer.quoted(f'{kernel}.{verb}{pool}')}"


def pool_text(kernel: str, sizes: Sequence[int]) -> list[str]:
    if not sizes:
        return []
    home, parts = _texts()
    facts = {"kept": KEPT, "last": KEPT - 1, "shift": 65 - KEPT.bit_length()}
    texts, releases = [home.substitute(facts)], []
    for pool, size in enumerate(sizes):
        names = {
            verb: pool_function(kernel, verb, pool)
            for verb in ("slots", "take", "give", "empty")
        }
        whole = -(-size // 64) * 64
        texts += [part.substitute(facts, **names, size=whole) for part in parts]
        releases.append(f"  call void {names['empty']}()")
    head = f"define void @{writer.quoted(kernel + RELEASE)}() nounwind {{"
    return [*texts, "\n".join([head, *releases, "  ret void", "}"])]


@lru_cache(maxsize=1)
def _texts() -> tuple[Template, list[Template]]:
    text = files("skforge.compiler.codegen.llvm").joinpath("pools.ll")
    lines = text.read_text("utf-8").splitlines()
    whole = "\n".join(line for line in lines if not line.startswith(";"))
    home, look, *parts = whole.split("\n\n")
    return Template(home), [Template(part.replace("${look}", look)) for part in parts]


# Constant-size scratch up to this size lies on the stack.
_STACK_ALLOC_BYTES = 16 << 10
_HEAP_ALIGNMENT = 64


def emit_llvm(function: lir.Function, target: Target) -> str:
    """Return the LLVM module of a verified function without grids or GPU operations."""
    module = writer.ModuleText(function.name, target)
    w = _LlvmEmitter(module)
    head, header = "define void", "ptr %$args, ptr %$pfor, i64 %$threads"
    if isinstance(function, lir.Routine):
        head, header = _routine(w, function)
    else:
        for slot, param in enumerate(function.params):
            _load_parameter(w, slot, param)
        w.bind("$pfor", "%$pfor")
        w.bind("$threads", "%$threads")
    w.emit_body(function.body)
    w.free_scratch()
    w.line("ret void" if head.endswith("void") else "unreachable")
    first = f"{head} @{writer.quoted(function.name)}({header}) nounwind {{"
    kernel = [first, "$entry:", *w.allocas, *w.lines, "}"]
    parts = [
        f'target triple = "{target.triple}"',
        *sorted({*module.declarations, *module.symbols.values()}),
        "\n".join(kernel),
        *module.outlined,
        *pool_text(module.kernel, module.pools),
    ]
    return "\n\n".join(parts) + "\n"


def _routine(w: writer.LlvmWriter, function: lir.Routine) -> tuple[str, str]:
    """Bind parameters; a routine has come through no passes, so it is verified here."""
    verify_lir(function)
    header = []
    for param in function.params:
        name = writer.own_name(param)
        if isinstance(param, lir.Buffer):
            w.bind("@" + param.name, name)
            header.append(f"ptr {name}")
        else:
            w.bind(param.name, name)
            header.append(f"{writer.type_text(param.type)} {name}")
    result = "void" if function.result is None else writer.type_text(function.result)
    hidden = "hidden " if function.local else ""
    return f"define {hidden}{result}", ", ".join(header)


def _load_parameter(
    w: writer.LlvmWriter, slot: int, param: lir.Value | lir.Buffer
) -> None:
    address = w.let(f"getelementptr inbounds i64, ptr %$args, i64 {slot}")
    name = writer.own_name(param)
    if isinstance(param, lir.Buffer):
        w.bind("@" + param.name, w.let(f"load ptr, ptr {address}, align 8", name))
        return
    if not isinstance(param.type, lir.Scalar):
        raise w.module.fail(f"parameter {param.name!r} is neither scalar nor buffer.")
    text, is_float = writer.type_text(param.type), param.type.is_float
    slot_type, shorten = ("double", "fptrunc") if is_float else ("i64", "trunc")
    load = f"load {slot_type}, ptr {address}, align 8"
    if text == slot_type:
        w.bind(param.name, w.let(load, name))
    elif param.type == lir.BOOL:
        w.bind_value(param, f"icmp ne i64 {w.let(load)}, 0")
    else:
        w.bind_value(param, f"{shorten} {slot_type} {w.let(load)} to {text}")


class _LlvmEmitter(writer.LlvmWriter):
    def __init__(
        self, module: writer.ModuleText, parent: writer.LlvmWriter | None = None
    ) -> None:
        super().__init__(module, parent)
        self._heap: list[list[str]] = []

    def emit_body(self, body: lir.Body) -> None:
        self._heap.append([])
        for stmt in body:
            self.emit(stmt)
        for pointer in self._heap.pop():
            self.line(f"call void @free(ptr {pointer})")

    def emit(self, stmt: lir.Stmt) -> None:
        write = _STATEMENTS.get(type(stmt))
        if write is None:
            raise self.module.fail(
                f"{type(stmt).__name__} must be legalised before the LLVM emitter."
            )
        write(self, stmt)

    # ------------------------------------------------------------ scratch

    def _alloc(self, stmt: lir.Alloc) -> None:
        buffer, count = stmt.buffer, self.constant_of(stmt.size)
        width = buffer.element.bytes
        align = max(buffer.alignment, width)
        if count is not None:
            n_bytes = max(1, int(count)) * width
            fits = self.stack_bytes + n_bytes + align <= writer.STACK_BYTES
            if n_bytes <= _STACK_ALLOC_BYTES and fits:
                self.stack_bytes += n_bytes + align
                name = writer.own_name(buffer)
                element = writer.memory_element(buffer.element)
                self.allocas.append(
                    f"  {name} = alloca [{int(count)} x {element}], align {align}"
                )
                self.bind("@" + buffer.name, name)
                return
        self.module.declarations.update(heap_texts(self.module.target.triple))
        align = max(align, _HEAP_ALIGNMENT)
        if count is not None:
            self._pooled(buffer, -(-n_bytes // align) * align)
            return
        # A positive multiple of the alignment for any size.
        wanted = self.let(f"mul i64 {self.index(stmt.size)}, {width}")
        padded = self.let(f"add i64 {wanted}, {align}")
        n_bytes_text = self.let(f"and i64 {padded}, -{align}")
        call = f"call ptr @aligned_alloc(i64 {align}, i64 {n_bytes_text})"
        pointer = self.let(call, writer.own_name(buffer))
        self.bind("@" + buffer.name, pointer)
        self._heap[-1].append(pointer)

    def _pooled(self, buffer: lir.Buffer, n_bytes: int) -> None:
        if self.pool is None:
            self.pool = len(self.module.pools)
            self.module.pools.append(0)
            take = pool_function(self.module.kernel, "take", self.pool)
            self.allocas.append(f"  %$scratch = call ptr {take}()")
        name = writer.own_name(buffer)
        place = f"ptr %$scratch, i64 {self.heap_bytes}"
        self.allocas.append(f"  {name} = getelementptr inbounds i8, {place}")
        self.heap_bytes += n_bytes
        self.module.pools[self.pool] = self.heap_bytes
        self.bind("@" + buffer.name, name)

    def free_scratch(self) -> None:
        if self.pool is not None:
            give = pool_function(self.module.kernel, "give", self.pool)
            self.line(f"call void {give}(ptr %$scratch)")

    def _return(self, stmt: lir.Return) -> None:
        for pointer in (p for body in self._heap for p in body):
            self.line(f"call void @free(ptr {pointer})")
        self.free_scratch()
        values = ", ".join(map(self.typed, stmt.values))
        self.line(f"ret {values or 'void'}")
        self.start(self.label("after"))

    # ------------------------------------------------------------ control

    def _phis(
        self,
        at: int,
        phis: Sequence[tuple[str, lir.Type]],
        incoming: Sequence[tuple[Sequence[str], str]],
    ) -> None:
        for k, (name, type_) in enumerate(phis):
            sources = ", ".join(f"[ {row[k]}, %{block} ]" for row, block in incoming)
            self.lines[at + k] = f"  {name} = phi {writer.type_text(type_)} {sources}"

    def _bind_own(self, values: Sequence[lir.Value]) -> None:
        for value in values:
            self.bind(value.name, writer.own_name(value))

    def _for(self, stmt: lir.For) -> None:
        """Write ``if (lo < hi) do … while (next < hi)``, which needs no rotation."""
        var, text = stmt.var, writer.type_text(stmt.var.type)
        assert isinstance(var.type, lir.Scalar)
        less = f"icmp {'s' if var.type.is_signed else 'u'}lt {text}"
        lo, hi, step = self.use(stmt.lo), self.use(stmt.hi), self.use(stmt.step)
        inits = [*map(self.use, stmt.inits)]
        loop, done = self.label("for"), self.label("done")
        before = self.block
        low, high = self.constant_of(stmt.lo), self.constant_of(stmt.hi)
        runs = low is not None and high is not None and low < high
        if runs:
            self.branch(loop)
        else:
            self.branch_if(self.let(f"{less} {lo}, {hi}"), loop, done)
        self.start(loop)
        self.note_loop(stmt)
        counter = self.temp()
        at = self.reserve(1 + len(stmt.params))
        self._bind_own(stmt.params)
        self.bind(var.name, self.let(_hidden(text, counter), writer.own_name(var)))
        self.emit_body(stmt.body)
        yields = [*map(self.use, stmt.yields)]
        following = self.let(f"add {text} {writer.own_name(var)}, {step}")
        latch = self.block
        self.branch_if(self.let(f"{less} {following}, {hi}"), loop, done)
        first, then = ([lo, *inits], before), ([following, *yields], latch)
        self._phis(at, [(counter, var.type), *_names(stmt.params)], [first, then])
        self.start(done)
        at = self.reserve(len(stmt.results))
        incoming = [] if runs else [(inits, before)]
        self._phis(at, _names(stmt.results), [*incoming, (yields, latch)])
        self._bind_own(stmt.results)

    def _while(self, stmt: lir.While) -> None:
        head, loop, done = self.label("while"), self.label("do"), self.label("done")
        inits, before = [*map(self.use, stmt.inits)], self.block
        self.branch(head)
        self.start(head)
        at = self.reserve(len(stmt.params))
        self._bind_own(stmt.params)
        self.emit_body(stmt.before)
        self.branch_if(self.use(stmt.cond), loop, done)
        self.start(loop)
        self.emit_body(stmt.body)
        yields, latch = [*map(self.use, stmt.yields)], self.block
        self.branch(head)
        self._phis(at, _names(stmt.params), [(inits, before), (yields, latch)])
        self.start(done)
        for param, result in zip(stmt.params, stmt.results, strict=True):
            self.bind(result.name, self.use(param))

    def _if(self, stmt: lir.If) -> None:
        yes, no, done = self.label("then"), self.label("else"), self.label("done")
        empty = not stmt.orelse and not stmt.else_yields
        self.branch_if(self.use(stmt.cond), yes, done if empty else no)
        arms = [(yes, stmt.then, stmt.then_yields)]
        arms += [] if empty else [(no, stmt.orelse, stmt.else_yields)]
        self._arms(stmt.results, done, arms)

    def _switch(self, stmt: lir.Switch) -> None:
        labels = [self.label(f"case{k}") for k in range(len(stmt.cases))]
        done = self.label("done")
        text = writer.type_text(stmt.selector.type)
        cases = enumerate(labels[:-1])
        table = " ".join(f"{text} {k}, label %{label}" for k, label in cases)
        selector = f"{text} {self.use(stmt.selector)}"
        self.line(f"switch {selector}, label %{labels[-1]} [ {table} ]")
        yields = stmt.yields or ((),) * len(stmt.cases)
        arms = zip(labels, stmt.cases, yields, strict=True)
        self._arms(stmt.results, done, list(arms))

    def _arms(
        self,
        results: Sequence[lir.Value],
        done: str,
        arms: Sequence[tuple[str, lir.Body, Sequence[lir.Value]]],
    ) -> None:
        incoming = []
        for label, body, yields in arms:
            self.start(label)
            self.emit_body(body)
            incoming.append(([*map(self.use, yields)], self.block))
            self.branch(done)
        self.start(done)
        self._phis(self.reserve(len(results)), _names(results), incoming)
        self._bind_own(results)

    # ------------------------------------------------------------ threads

    def _parallel(self, stmt: lir.ParallelFor) -> None:
        self.module.regions += 1
        symbol = writer.quoted(f"{self.module.kernel}.p{self.module.regions}")
        text = writer.type_text(stmt.count.type)
        count = self.index(stmt.count)
        threads = self.operand("$threads", "i64", "i64")
        few = self.let(f"icmp sle i64 {count}, 1")
        # If this loop has a single iteration, a loop inside gets all the threads.
        inner_threads = self.let(f"select i1 {few}, i64 {threads}, i64 1")

        inner = _LlvmEmitter(self.module, self)
        inner.bind("$threads", "%$threads")
        inner.start("$loop")
        inner.let("phi i64 [ %$begin, %$enter ], [ %$next, %$latch ]", "%$i")
        var = inner.let(_hidden("i64", "%$i"))
        if text != "i64":
            var = inner.let(f"trunc i64 {var} to {text}")
        inner.bind(stmt.var.name, var)
        inner.emit_body(stmt.body)
        inner.branch("$latch")
        inner.start("$latch")
        inner.let("add i64 %$i, 1", "%$next")
        inner.branch_if(inner.let("icmp slt i64 %$next, %$end"), "$loop", "$exit")
        inner.start("$exit")
        inner.free_scratch()
        inner.line("ret void")
        captured = list(inner.captures.values())
        struct = f"{{ {', '.join(['i64', *(c.memory for c in captured)])} }}"

        # The context: threads for inner loops, then the captured values.
        context = self.temp()
        self.allocas.append(f"  {context} = alloca {struct}")
        self.line(f"store i64 {inner_threads}, ptr {context}")
        for k, c in enumerate(captured, start=1):
            operand = c.outer
            if c.memory != c.type:
                operand = self.let(f"bitcast {c.type} {operand} to {c.memory}")
            at = self.let(f"{_field_of(struct, context)} {k}")
            self.line(f"store {c.memory} {operand}, ptr {at}")
        self.module.outlined.append(_outlined(symbol, struct, inner))

        alone, shared = self.label("alone"), self.label("shared")
        done = self.label("done")
        single = self.let(f"icmp sle i64 {threads}, 1")
        serial = self.let(f"or i1 {single}, {few}")
        self.branch_if(serial, alone, shared)
        self.start(alone)
        self.line(f"call void @{symbol}(ptr {context}, i64 0, i64 {count})")
        self.branch(done)
        self.start(shared)
        pfor = self.operand("$pfor", "ptr", "ptr")
        args = f"ptr @{symbol}, ptr {context}, i64 {count}, i64 {threads}"
        self.line(f"call void {pfor}({args})")
        self.branch(done)
        self.start(done)


#: Writes a statement.
_STATEMENTS: dict[type[Any], Callable[[_LlvmEmitter, Any], None]] = {
    **ops.STATEMENTS,
    lir.Let: ops.emit_let,
    lir.Alloc: _LlvmEmitter._alloc,
    lir.For: _LlvmEmitter._for,
    lir.While: _LlvmEmitter._while,
    lir.If: _LlvmEmitter._if,
    lir.Switch: _LlvmEmitter._switch,
    lir.ParallelFor: _LlvmEmitter._parallel,
    lir.Return: _LlvmEmitter._return,
}


def _names(values: Sequence[lir.Value]) -> list[tuple[str, lir.Type]]:
    return [(writer.own_name(value), value.type) for value in values]


def _hidden(text: str, counter: str) -> str:
    """Return an instruction that hides from LLVM that a value is a loop counter.

    Otherwise loop strength reduction turns every address in an interleaved walk into a
    pointer: 16 rows then took 0.99 µs a row and 144 ms of code generation, against
    0.44 µs and 40 ms with this. The expectation itself costs no instruction.
    """
    return f"call {text} @llvm.expect.{text}({text} {counter}, {text} 0)"


def _outlined(symbol: str, struct: str, body: writer.LlvmWriter) -> str:
    loads = ["  %$threads = load i64, ptr %$ctx"]
    for k, (local, c) in enumerate(body.captures.items(), start=1):
        loads.append(f"  %$a{k} = {_field_of(struct, '%$ctx')} {k}")
        if c.memory == c.type:
            loads.append(f"  {local} = load {c.type}, ptr %$a{k}")
        else:
            loads.append(f"  %$m{k} = load {c.memory}, ptr %$a{k}")
            loads.append(f"  {local} = bitcast {c.memory} %$m{k} to {c.type}")
    params = "ptr %$ctx, i64 %$begin, i64 %$end"
    lines = (
        f"define internal void @{symbol}({params}) nounwind {{",
        "$entry:",
        *body.allocas,
        *loads,
        "  %$some = icmp slt i64 %$begin, %$end",
        "  br i1 %$some, label %$enter, label %$exit",
        "$enter:",
        "  br label %$loop",
        *body.lines,
        "}",
    )
    return "\n".join(lines)


def _field_of(struct: str, context: str) -> str:
    return f"getelementptr inbounds {struct}, ptr {context}, i64 0, i32"
