"""LLVM text of a compiled entry after its kernel: sums, a transform, labels."""

from __future__ import annotations

from skforge.compiler.outputs.functions import evaluate
from skforge.compiler.outputs.steps import Steps
from skforge.compiler.outputs.text import LLVM, Code, Terms, llvm_number

LLVM_TYPES = LLVM.types


def loop(
    name: str,
    count: object,
    body: str,
    after: str,
    *carried: tuple[str, str, str],
    step: int = 1,
) -> str:
    """Return ``for %i.name in 0 .. count`` (count > 0) by steps, then a jump.

    ``carried`` are the name, the type and the first value of variables; the body
    computes ``%name.n``, the next value.
    """
    phis = "".join(
        f"  %{one} = phi {type_} [ {first}, %{name} ], [ %{one}.n, %{name}.latch ]\n"
        for one, type_, first in carried
    )
    return f"""{name}:
  br label %{name}.loop
{name}.loop:
  %i.{name} = phi i64 [ 0, %{name} ], [ %i.{name}.next, %{name}.latch ]
{phis}{body}
  br label %{name}.latch
{name}.latch:
  %i.{name}.next = add i64 %i.{name}, {step}
  %i.{name}.more = icmp slt i64 %i.{name}.next, {count}
  br i1 %i.{name}.more, label %{name}.loop, label %{after}"""


class ResultWriter:
    """Writes the part of an entry point between its kernel and its return."""

    def __init__(
        self, steps: Steps, n_outputs: int, sum_dtype: str, takes: bool = False
    ) -> None:
        self.steps, self.n_outputs, self.takes = steps, n_outputs, takes
        self.sum_dtype, self.sum = sum_dtype, LLVM_TYPES[sum_dtype]
        self.in_place = steps.result == "values"
        self.dtype, self.columns = steps.shape(n_outputs, sum_dtype)

    def results(self) -> str:
        """Return the blocks from ``divide0`` on, which end with a jump to ``return``.

        ``%count`` sums of ``%n`` rows are at ``%sums``, and results go to ``%data``.
        """
        return "\n".join([self._divide(), self._transform(), self._finish()])

    # ------------------------------------------------------------ sums

    def _sums(self) -> str:
        """Place the sums in the output, or on the stack if the shape changes."""
        if self.in_place:
            return "  %sums = getelementptr i8, ptr %data, i64 0"
        return (
            f"  %scratch = mul i64 %n, {self.n_outputs}\n"
            f"  %sums = alloca {self.sum}, i64 %scratch, align 64"
        )

    def _load(self, name: str, base: str, at: str) -> str:
        """Return the lines that load ``%x.name`` from ``%at.name``."""
        return (
            f"  %at.{name} = getelementptr {self.sum}, ptr %{base}, i64 {at}\n"
            f"  %x.{name} = load {self.sum}, ptr %at.{name}"
        )

    def _row(self, name: str) -> str:
        """Return the lines of ``%row.name``, the address of a row's sums."""
        return (
            f"  %first.{name} = mul i64 %i.{name}, {self.n_outputs}\n"
            f"  %row.{name} = getelementptr {self.sum}, ptr %sums, i64 %first.{name}"
        )

    def _each(self, name: str, lines: list[str], value: str, after: str) -> str:
        """Return the loop that replaces each sum, ``%x.name``, by a value."""
        store = f"  store {self.sum} {value}, ptr %at.{name}"
        body = "\n".join([self._load(name, "sums", f"%i.{name}"), *lines, store])
        return loop(name, "%count", body, after)

    def _divide(self) -> str:
        parts = []
        for i, divisor in enumerate(self.steps.divisors):
            by = llvm_number(divisor, self.sum_dtype)
            line = f"  %y.divide{i} = fdiv {self.sum} %x.divide{i}, {by}"
            name, after = f"divide{i}", f"divide{i + 1}"
            parts.append(self._each(name, [line], f"%y.{name}", after))
        last = len(self.steps.divisors)
        return "\n".join([*parts, f"divide{last}:\n  br label %transform"])

    def _transform(self) -> str:
        function = self.steps.function
        if function == "identity":
            return "transform:\n  br label %finish"
        if function == "softmax":
            return self._softmax()
        if function == "path_length":
            return self._path_score()
        code = Code(LLVM)
        x = Terms(code, ("%x.transform",), self.sum_dtype)
        value = evaluate(function, x, self.steps.parameter, code)
        return self._each("transform", code.lines(value), value.names[0], "finish")

    def _path_score(self) -> str:
        """Compute powers of 2 with NumPy's own loop, in place, for all rows."""
        cut = llvm_number(self.steps.parameter, "float64")
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
        """Write softmax: exp(x - greatest), the sum in order in float64, a division."""
        t, k, row = self.sum, self.n_outputs, "row.transform"
        wide, total, widen, narrow = "%power", "%whole.n", "", ""
        if t == "float":
            wide, total = "%power.wide", "%whole.t"
            widen = "  %power.wide = fpext float %power to double\n"
            narrow = "  %whole.t = fptrunc double %whole.n to float\n"
        most = f"""{self._load("max", row, "%i.max")}
  %above = fcmp ogt {t} %x.max, %greatest
  %greatest.n = select i1 %above, {t} %x.max, {t} %greatest"""
        powers = f"""{self._load("powers", row, "%i.powers")}
  %less = fsub {t} %x.powers, %greatest.n
  %power = call {t} @skf_exp{"f" if t == "float" else ""}({t} %less)
  store {t} %power, ptr %at.powers
{widen}  %whole.n = fadd double %whole, {wide}"""
        scale = f"""{self._load("scale", row, "%i.scale")}
  %share = fdiv {t} %x.scale, {total}
  store {t} %share, ptr %at.scale"""
        body = f"""{self._row("transform")}
  br label %max
{loop("max", k, most, "powers", ("greatest", t, "0xFFF0000000000000"))}
{loop("powers", k, powers, "total", ("whole", "double", "0.0"))}
total:
{narrow}  br label %scale
{loop("scale", k, scale, "row.done")}
row.done:"""
        return loop("transform", "%n", body, "finish")

    # ------------------------------------------------------------ results

    def _finish(self) -> str:
        match self.steps.result:
            case "values":
                return "finish:\n  br label %return"
            case "both_classes":
                body = self._both_classes()
            case "above":
                return loop("finish", "%count", self._above(), "return")
            case "best":
                body = self._best()
            case _:
                body = self._of_row()
        return loop("finish", "%n", body, "return")

    def _store(self, name: str, value: str, place: str = "%i.finish") -> str:
        """Return the lines that store a result, or the label of a class index."""
        type_ = LLVM_TYPES[self.dtype]
        label = ""
        if type_ == "i64" and self.steps.labels:
            label = (
                f"  %label.at = getelementptr i64, ptr @labels, i64 {value}\n"
                "  %label = load i64, ptr %label.at\n"
            )
            value = "%label"
        return (
            f"{label}  %to.{name} = getelementptr {type_}, ptr %data, i64 {place}\n"
            f"  store {type_} {value}, ptr %to.{name}"
        )

    def _above(self) -> str:
        cut = llvm_number(self.steps.cut, self.sum_dtype)
        convert = "zext" if self.dtype == "int64" else "uitofp"
        return f"""{self._load("finish", "sums", "%i.finish")}
  %above.cut = fcmp {self.steps.comparison} {self.sum} %x.finish, {cut}
  %flag = {convert} i1 %above.cut to {LLVM_TYPES[self.dtype]}
{self._store("flag", "%flag")}"""

    def _of_row(self) -> str:
        """Load a row's sums, compute, and store the results."""
        lines, code = [self._row("finish")], Code(LLVM)
        columns = range(self.n_outputs)
        lines += [self._load(f"w{j}", "row.finish", str(j)) for j in columns]
        scores = Terms(code, tuple(f"%x.w{j}" for j in columns), self.sum_dtype)
        results = self.steps.of_row(scores, code)
        lines += code.lines(results)
        lines.append(f"  %first.to = mul i64 %i.finish, {self.columns}")
        for j, result in enumerate(results.names):
            lines.append(f"  %place{j} = add i64 %first.to, {j}")
            lines.append(self._store(str(j), result, f"%place{j}"))
        return "\n".join(lines)

    def labels(self) -> str:
        """Return the table of labels, if there is one."""
        words = ", ".join(f"i64 {label}" for label in self.steps.labels)
        count = len(self.steps.labels)
        return (
            f"@labels = internal constant [{count} x i64] [ {words} ]" if words else ""
        )

    def _return(self) -> str:
        if not self.takes:
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
        return f"""{self._load("finish", "sums", "%i.finish")}
  %complement = fsub {t} 1.0, %x.finish
  %first.to = mul i64 %i.finish, 2
  %second.to = add i64 %first.to, 1
{self._store("0", "%complement", "%first.to")}
{self._store("1", "%x.finish", "%second.to")}"""

    def _best(self) -> str:
        """Return the index of a row's first greatest value, or of its first NaN."""
        t = self.sum
        body = f"""{self._load("best", "row.finish", "%i.best")}
  %is.above = fcmp ugt {t} %x.best, %value
  %is.number = fcmp ord {t} %value, %value
  %is.better = and i1 %is.above, %is.number
  %place.n = select i1 %is.better, i64 %i.best, i64 %place
  %value.n = select i1 %is.better, {t} %x.best, {t} %value"""
        carried = ("place", "i64", "0"), ("value", t, "%x.zero")
        return f"""{self._row("finish")}
{self._load("zero", "row.finish", "0")}
  br label %best
{loop("best", self.n_outputs, body, "best.end", *carried)}
best.end:
{self._store("best", "%place.n")}"""
