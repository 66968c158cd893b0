"""Which i64 values of a function are only indices and counts, and fit 32 bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import I32, I64, U32, Function, Op, Stmt, Value
from skforge.compiler.ir.lir.walk import operands, operands_of_stmt, statements

_LIMIT = 1 << 31

#: Operations whose i64 operands and result have one width.
TIED = (
    lir.Unary,
    lir.Binary,
    lir.Compare,
    lir.Select,
    lir.Splat,
    lir.Extract,
    lir.Pack,
    lir.Shuffle,
    lir.Compress,
    lir.WarpReduce,
)
# Operations whose i64 operands are indices, and may have any width.
_INDEXED = (lir.Load, lir.LoadPlane, lir.Lookup, lir.FoldTree)


def _is_i64(value: Value) -> bool:
    return value.type.element == I64


def groups_of(stmt: Stmt) -> Iterator[list[Value]]:
    """Return the i64 values that a statement ties to each other."""
    groups: Iterable[Iterable[Value]] = ()
    match stmt:
        case lir.Let(value=value, op=op) if isinstance(op, TIED):
            groups = [[value, *operands(op)]]
        case lir.Let(value=value, op=lir.Convert(a=a)) if _is_i64(a):
            groups = [[value, a]] if _is_i64(value) else []
        case lir.For() | lir.While():
            groups = zip(
                stmt.inits, stmt.params, stmt.yields, stmt.results, strict=True
            )
        case lir.If():
            groups = zip(stmt.then_yields, stmt.else_yields, stmt.results, strict=True)
        case lir.Switch(yields=yields, results=results) if results:
            groups = zip(*yields, results, strict=True)
        case _:
            pass
    for group in groups:
        yield [v for v in group if _is_i64(v)]


class IndexWidths:
    """What has to stay in 64 bits, and what can be had in both widths.

    Attributes
    ----------
    wide : set of str
        Values of 64 bits only.
    both : set of str
        Values that are not computed from others of either width: a use in 64 bits
        does not make them, or what they come from, 64 bits wide.
    """

    def __init__(self, function: Function) -> None:
        self.wide: set[str] = set()
        self.both: set[str] = set()
        self._ops: dict[str, Op] = {}
        self._groups: list[list[Value]] = []
        self._bounds: list[tuple[Value, tuple[Value, ...]]] = []
        for param in function.params:
            if isinstance(param, Value) and _is_i64(param):
                self.both.add(param.name)
        found = list(statements(function.body))
        for stmt in found:  # the rules below ask where operands come from
            if isinstance(stmt, lir.Let):
                self._ops[stmt.value.name] = stmt.op
                if _is_i64(stmt.value):
                    self._bind(stmt.value, stmt.op)
            else:
                self._variables(stmt)
        for stmt in found:
            self._groups += groups_of(stmt)
            if isinstance(stmt, lir.Let):
                self._read(stmt.value, stmt.op)
            elif isinstance(stmt, lir.Store | lir.Scatter | lir.AtomicAdd):
                self._pin(stmt.value)
            elif isinstance(stmt, lir.TransposeBlock | lir.UnpermuteStore):
                self._pin(*operands_of_stmt(stmt))
        self._spread()

    def takes_any(self, op: Op, value: Value) -> bool:
        """Whether the i64 operands of ``op`` may have either width."""
        if isinstance(op, lir.Convert):
            return not value.type.element.is_float
        return isinstance(op, _INDEXED)

    # ------------------------------------------------------------ rules

    def _bind(self, value: Value, op: Op) -> None:
        match op:
            case lir.Const(value=number):
                if -_LIMIT <= number < _LIMIT:
                    self.both.add(value.name)
                else:
                    self.wide.add(value.name)
            case lir.Iota():
                self.both.add(value.name)
            case lir.MaskBits(a=a):
                (self.both if a.type.lanes < 32 else self.wide).add(value.name)
            case lir.Convert(a=a) if not _is_i64(a):
                (self.both if self._fits(a) else self.wide).add(value.name)
            case _ if isinstance(op, (*TIED, lir.Convert)):
                pass
            case _:
                self.wide.add(value.name)

    def _variables(self, stmt: Stmt) -> None:
        pairs: list[tuple[Value, tuple[Value, ...]]] = []
        match stmt:
            case lir.For(var=var, lo=lo, hi=hi, step=step):
                pairs = [(var, (lo, hi, step))]
            case lir.ParallelFor(var=var, count=count):
                pairs = [(var, (count,))]
            case lir.Grid(dims=dims) | lir.BlockRegion(dims=dims):
                pairs = [(var, (count,)) for _, var, count in dims]
            case _:
                pass
        for var, bounds in pairs:
            if _is_i64(var):
                self.both.add(var.name)
                self._bounds.append((var, bounds))

    def _fits(self, value: Value, depth: int = 0) -> bool:
        """Whether a value that is no i64 is below 2**31."""
        element = value.type.element
        if element != U32:
            return not element.is_float
        op = self._ops.get(value.name)
        if depth > 8:
            return False
        deeper = depth + 1
        match op:
            case lir.Load() | lir.Gather() | lir.Lookup():
                return True  # by the convention above
            case lir.Const(value=number):
                return number < _LIMIT
            case lir.Convert(a=a):
                return a.type.element not in (I32, I64) and self._fits(a, deeper)
            case lir.Splat(a=a) | lir.Extract(a=a):
                return self._fits(a, deeper)
            case lir.Binary(op="and" | "min", a=a, b=b):
                return any(self._masks(v, deeper) for v in (a, b))
            case lir.Binary(op="shr", b=b):
                return 1 <= self._constant(b) < 32
            case lir.Select(cond=cond, a=a, b=b):
                kept = self._fits(a, deeper) or self._below(a, cond)
                return kept and self._fits(b, deeper)
            case _:
                return False

    def _masks(self, value: Value, depth: int) -> bool:
        """Whether a number is below 2**31 for sure, by no convention."""
        if isinstance(self._ops.get(value.name), lir.Load | lir.Gather | lir.Lookup):
            return False
        return self._fits(value, depth)

    def _below(self, value: Value, cond: Value) -> bool:
        """Whether a condition says that a number is below a constant that fits."""
        match self._ops.get(cond.name):
            case lir.Compare(op="lt" | "le", a=a, b=b):
                return a == value and 0 <= self._constant(b) < _LIMIT
            case _:
                return False

    def _constant(self, value: Value) -> int:
        """Return an integer constant, splat or not; -1 for anything else."""
        op = self._ops.get(value.name)
        if isinstance(op, lir.Splat):
            return self._constant(op.a)
        return int(op.value) if isinstance(op, lir.Const) else -1

    def _read(self, value: Value, op: Op) -> None:
        """Note what an operation's operands have to be."""
        match op:
            case lir.Binary(op="shl" | "shr", a=a, b=b):
                most = 31 if op.op == "shr" else 30
                if not 0 <= self._constant(b) <= most:
                    self._pin(value, a, b)
            case lir.Unary(op="popcount" | "zeros", a=a):
                self._pin(value, a)
            case lir.Gather(other=other):
                self._pin(*(() if other is None else (other,)))
            case _:
                if not isinstance(op, TIED) and not self.takes_any(op, value):
                    self._pin(*operands(op))

    def _pin(self, *values: Value) -> None:
        """Let values be 64 bits wide that are not there in both widths."""
        for value in values:
            if _is_i64(value) and value.name not in self.both:
                self.wide.add(value.name)

    def _spread(self) -> None:
        before = -1
        while before < len(self.wide):
            before = len(self.wide)
            for group in self._groups:
                if any(v.name in self.wide for v in group):
                    self._pin(*group)
            for var, bounds in self._bounds:
                if any(v.name in self.wide for v in bounds):
                    self.both.discard(var.name)
                    self.wide.add(var.name)
