"""LLVM text of a compiled entry after its kernel: sums, a transform, labels."""

from __future__ import annotations

from collections.abc import Sequence

from skforge.compiler.forest.outputs import Function
from skforge.compiler.outputs.functions import OpName, render
from skforge.compiler.outputs.steps import EntryKind, RowSteps
from skforge.compiler.runtime.entry.rows import LLVM_TYPES, Lines, literal, row_text


class ResultWriter:
    """Writes the part of an entry point between its kernel and its return."""

    def __init__(self, kind: EntryKind) -> None:
        self.k = kind
        self.sum = LLVM_TYPES[kind.sum_dtype]
        self.suffix = "f" if self.sum == "float" else ""
        self.in_place = kind.steps.result == "values"
        match kind.steps.result:
            case "values":
                self.dtype, self.columns = kind.sum_dtype, kind.n_outputs
            case "both_classes":
                self.dtype, self.columns = kind.sum_dtype, 2
            case "above":
                self.columns = kind.n_outputs
                self.dtype = "int64" if kind.n_outputs == 1 else "float64"
            case "best":
                self.dtype, self.columns = "int64", 1
            case "row":
                row = kind.steps.row
                assert row is not None
                self.dtype, self.columns = row.dtype, row.columns

    # ------------------------------------------------------------ sums

    def _sums(self) -> str:
        """Place the sums in the output, or on the stack if the shape changes."""
        if self.in_place:
            return "  %sums = getelementptr i8, ptr %data, i64 0"
        return (
            f"  %scratch = mul i64 %n, {self.k.n_outputs}\n"
            f"  %sums = alloca {self.sum}, i64 %scratch, align 64"
        )

    def _loop(self, name: str, count: str, body: str, after: str) -> str:
        """Return ``for %i.name in 0 .. count`` (count > 0), then a jump."""
        return f"""  br label %{name}.loop
{name}.loop:
  %i.{name} = phi i64 [ 0, %{name} ], [ %i.{name}.next, %{name}.latch ]
{body}
  br label %{name}.latch
{name}.latch:
  %i.{name}.next = add i64 %i.{name}, 1
  %i.{name}.more = icmp slt i64 %i.{name}.next, {count}
  br i1 %i.{name}.more, label %{name}.loop, label %{after}"""

    def _each(self, name: str, lines: Sequence[str], value: str, after: str) -> str:
        """Return the loop that replaces each sum, ``%x.name``, by a value."""
        body = "\n".join(
            [
                f"  %at.{name} = getelementptr {self.sum}, ptr %sums, i64 %i.{name}",
                f"  %x.{name} = load {self.sum}, ptr %at.{name}",
                *lines,
                f"  store {self.sum} {value}, ptr %at.{name}",
            ]
        )
        return f"{name}:\n" + self._loop(name, "%count", body, after)

    def _divide(self) -> str:
        parts = []
        for i, divisor in enumerate(self.k.steps.divisors):
            by = literal(divisor, self.k.sum_dtype)
            line = f"  %y.divide{i} = fdiv {self.sum} %x.divide{i}, {by}"
            name, after = f"divide{i}", f"divide{i + 1}"
            parts.append(self._each(name, [line], f"%y.{name}", after))
        last = len(self.k.steps.divisors)
        return "\n".join([*parts, f"divide{last}:\n  br label %transform"])

    def _transform(self) -> str:
        function = self.k.steps.function
        if function == "identity":
            return "transform:\n  br label %finish"
        if function == "softmax":
            return self._softmax()
        if function == "path_length":
            return self._path_score()
        return self._each("transform", *self._function(function), "finish")

    def _function(self, function: Function) -> tuple[list[str], str]:
        """Return the lines of a function of a sum, and the name of its result."""
        t, text = self.sum, Lines()

        def apply(name: OpName, operands: list[str]) -> str:
            first, second = (*operands, "")[:2]
            match name:
                case "neg":
                    return text.neg(first, t)
                case "add" | "mul" | "div":
                    return text.op(f"f{name}", first, second, t)
                case "least":  # NaN stays NaN, as it does in NumPy's minimum
                    less = text.op("fcmp ult", first, second, t)
                    return text.choose(less, first, second, t)
                case "exp":
                    return text.call(f"skf_exp{self.suffix}", first, t)
                case "log1p":
                    return text.call("skf_log1p", first, t)
                case "positive":
                    above = text.op("fcmp ogt", first, "0.0", t)
                    return text.choose(above, "1.0", "0.0", t)
                case "sign":
                    above = text.op("fcmp ogt", first, "0.0", t)
                    below = text.op("fcmp olt", first, "0.0", t)
                    up = text.add(f"uitofp i1 {above} to {t}")
                    down = text.add(f"uitofp i1 {below} to {t}")
                    return text.op("fsub", up, down, t)

        def number(value: float) -> str:
            return literal(value, self.k.sum_dtype)

        parameter = self.k.steps.parameter
        value = render(function, "%x.transform", parameter, number, apply)
        return text.lines, value

    def _path_score(self) -> str:
        """Compute powers of 2 with NumPy's own loop, in place, for all rows."""
        cut = literal(self.k.steps.parameter, "float64")
        minus = ["  %minus = fneg double %x.transform"]
        score = [
            "  %minus.power = fneg double %x.score",
            f"  %score.y = fsub double %minus.power, {cut}",
        ]
        return f"""{self._each("transform", minus, "%minus", "power")}
power:
  %two = alloca double, align 8
  store double 2.0, ptr %two
  %places = alloca [3 x ptr], align 16
  %place.1 = getelementptr ptr, ptr %places, i64 1
  %place.2 = getelementptr ptr, ptr %places, i64 2
  store ptr %two, ptr %places
  store ptr %sums, ptr %place.1
  store ptr %sums, ptr %place.2
  %powers = alloca i64, align 8
  store i64 %count, ptr %powers
  %steps = alloca [3 x i64], align 16
  store [3 x i64] [ i64 0, i64 8, i64 8 ], ptr %steps
  call void @skf_power(ptr %places, ptr %powers, ptr %steps, ptr null)
  br label %score
{self._each("score", score, "%score.y", "finish")}"""

    def _softmax(self) -> str:
        """Write softmax: float exp(x - max), their float64 sum in order, a division."""
        t, k = self.sum, self.k.n_outputs
        lines = [
            f"  %s.row = mul i64 %i.transform, {k}",
            f"  %s.at = getelementptr {t}, ptr %sums, i64 %s.row",
            "  br label %max",
        ]

        def inner(name: str, carry: str, init: str, body: str, after: str) -> list[str]:
            return [
                f"{name}:",
                f"  br label %{name}.l",
                f"{name}.l:",
                f"  %j.{name} = phi i64 [ 0, %{name} ], [ %j.{name}.n, %{name}.l ]",
                f"  %c.{name} = phi {carry} [ {init}, %{name} ], "
                f"[ %c.{name}.n, %{name}.l ]",
                f"  %p.{name} = getelementptr {t}, ptr %s.at, i64 %j.{name}",
                f"  %x.{name} = load {t}, ptr %p.{name}",
                body,
                f"  %j.{name}.n = add i64 %j.{name}, 1",
                f"  %m.{name} = icmp slt i64 %j.{name}.n, {k}",
                f"  br i1 %m.{name}, label %{name}.l, label %{after}",
            ]

        low = "0xFFF0000000000000"
        lines += inner(
            "max",
            t,
            low,
            f"  %g.max = fcmp ogt {t} %x.max, %c.max\n"
            f"  %c.max.n = select i1 %g.max, {t} %x.max, {t} %c.max",
            "powers",
        )
        wide = "%e.powers" if t == "double" else "%w.powers"
        widen = "" if t == "double" else "  %w.powers = fpext float %e.powers to double"
        lines += inner(
            "powers",
            "double",
            "0.0",
            f"  %d.powers = fsub {t} %x.powers, %c.max.n\n"
            f"  %e.powers = call {t} @skf_exp{self.suffix}({t} %d.powers)\n"
            f"  store {t} %e.powers, ptr %p.powers\n{widen}\n"
            f"  %c.powers.n = fadd double %c.powers, {wide}",
            "total",
        )
        narrow = (
            "  %total.t = fadd double %c.powers.n, 0.0"
            if t == "double"
            else "  %total.t = fptrunc double %c.powers.n to float"
        )
        lines += ["total:", narrow, "  br label %scale"]
        lines += inner(
            "scale",
            "i1",
            "false",
            f"  %q.scale = fdiv {t} %x.scale, %total.t\n"
            f"  store {t} %q.scale, ptr %p.scale\n  %c.scale.n = or i1 %c.scale, true",
            "row.done",
        )
        lines.append("row.done:")
        body = "\n".join(lines)
        return "transform:\n" + self._loop("transform", "%n", body, "finish")

    # ------------------------------------------------------------ results

    def _finish(self) -> str:
        t, steps = self.sum, self.k.steps
        match steps.result:
            case "values":
                return "finish:\n  br label %return"
            case "both_classes":
                count, body = "%n", self._both_classes()
            case "above":
                out = LLVM_TYPES[self.dtype]
                convert = "uitofp" if out == "double" else "zext"
                cut = literal(steps.cut, self.k.sum_dtype)
                count, body = (
                    "%count",
                    f"""  %l.at = getelementptr {t}, ptr %sums, i64 %i.finish
  %l.p = load {t}, ptr %l.at
  %l.g = fcmp {steps.comparison} {t} %l.p, {cut}
  %l.n = {convert} i1 %l.g to {out}
{self._label("l.v", "%l.n") if out == "i64" else "  %l.v = fadd double %l.n, 0.0"}
  %l.to = getelementptr {out}, ptr %data, i64 %i.finish
  store {out} %l.v, ptr %l.to""",
                )
            case "best":
                count, body = "%n", self._best()
            case "row":
                assert steps.row is not None
                count, body = "%n", self._row(steps.row)
        return "finish:\n" + self._loop("finish", count, body, "return")

    def _row(self, steps: RowSteps) -> str:
        """Load a row's sums, compute, and store the results."""
        k, out = self.k.n_outputs, LLVM_TYPES[self.dtype]
        lines = [f"  %w.first = mul i64 %i.finish, {k}"]
        for j in range(k):
            lines += [
                f"  %w.place{j} = add i64 %w.first, {j}",
                f"  %w.at{j} = getelementptr {self.sum}, ptr %sums, i64 %w.place{j}",
                f"  %w.x{j} = load {self.sum}, ptr %w.at{j}",
            ]
        text, results = row_text(
            steps, self.k.sum_dtype, [f"%w.x{j}" for j in range(k)]
        )
        lines += [text, f"  %w.to = mul i64 %i.finish, {len(results)}"]
        for j, result in enumerate(results):
            if out == "i64":
                lines.append(self._label(f"w.label{j}", result))
                result = f"%w.label{j}"
            lines += [
                f"  %w.to{j} = add i64 %w.to, {j}",
                f"  %w.out{j} = getelementptr {out}, ptr %data, i64 %w.to{j}",
                f"  store {out} {result}, ptr %w.out{j}",
            ]
        return "\n".join(lines)

    def _labels(self) -> str:
        words = ", ".join(f"i64 {label}" for label in self.k.labels)
        count = len(self.k.labels)
        return (
            f"@labels = internal constant [{count} x i64] [ {words} ]" if words else ""
        )

    def _label(self, name: str, at: str) -> str:
        """Return ``%name``: the label at this index, or the index itself."""
        if not self.k.labels:
            return f"  %{name} = add i64 {at}, 0"
        return (
            f"  %{name}.at = getelementptr i64, ptr @labels, i64 {at}\n"
            f"  %{name} = load i64, ptr %{name}.at"
        )

    def _return(self) -> str:
        if not self.k.takes:
            return "return:\n  ret ptr %out"
        return """return:
  %taken = call ptr (ptr, ...) @skf_call(ptr @skf_take, ptr %out, ptr null)
  call void @skf_decref(ptr %out)
  %is.taken = icmp ne ptr %taken, null
  br i1 %is.taken, label %give, label %forget
give:
  ret ptr %taken"""

    def _both_classes(self) -> str:
        t = self.sum
        return f"""  %b.at = getelementptr {t}, ptr %sums, i64 %i.finish
  %b.p = load {t}, ptr %b.at
  %b.q = fsub {t} 1.0, %b.p
  %b.i = mul i64 %i.finish, 2
  %b.to = getelementptr {t}, ptr %data, i64 %b.i
  store {t} %b.q, ptr %b.to
  %b.to1 = getelementptr {t}, ptr %b.to, i64 1
  store {t} %b.p, ptr %b.to1"""

    def _best(self) -> str:
        """Return the index of a row's first greatest value, or of its first NaN."""
        t, k = self.sum, self.k.n_outputs
        return f"""  %l.row = mul i64 %i.finish, {k}
  %l.at = getelementptr {t}, ptr %sums, i64 %l.row
  %l.first = load {t}, ptr %l.at
  br label %best
best:
  %best.j = phi i64 [ 0, %finish.loop ], [ %best.j.n, %best ]
  %best.b = phi i64 [ 0, %finish.loop ], [ %best.b.n, %best ]
  %best.v = phi {t} [ %l.first, %finish.loop ], [ %best.v.n, %best ]
  %best.at = getelementptr {t}, ptr %l.at, i64 %best.j
  %best.x = load {t}, ptr %best.at
  %best.u = fcmp ugt {t} %best.x, %best.v
  %best.o = fcmp ord {t} %best.v, %best.v
  %best.g = and i1 %best.u, %best.o
  %best.b.n = select i1 %best.g, i64 %best.j, i64 %best.b
  %best.v.n = select i1 %best.g, {t} %best.x, {t} %best.v
  %best.j.n = add i64 %best.j, 1
  %best.m = icmp slt i64 %best.j.n, {k}
  br i1 %best.m, label %best, label %best.end
best.end:
{self._label("l.v", "%best.b.n")}
  %l.to = getelementptr i64, ptr %data, i64 %i.finish
  store i64 %l.v, ptr %l.to"""
