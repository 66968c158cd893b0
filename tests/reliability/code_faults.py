"""Small faults that can be planted in Python's text: where, and what it then says.

A fault changes one expression: a comparison, an operator of arithmetic, an integer by
one, a rule (``and``, ``not``, a condition), or two entries of a table that change
places. Texts for people and for type checkers are left alone. The same seed draws the
same faults from the same text.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["comparison", "arithmetic", "bound", "rule", "table"]

_WORDS: dict[type[ast.cmpop | ast.operator | ast.boolop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in",
    ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.Mod: "%", ast.LShift: "<<", ast.RShift: ">>",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.And: "and", ast.Or: "or",
}  # fmt: skip
#: What an operator becomes.
_OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_OTHER |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
_OTHER |= {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "//"}
_OTHER |= {
    "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "|", "and": "or", "or": "and",
}  # fmt: skip
#: Expressions whose text needs no parentheses beside an operator.
_ATOMS = (ast.Attribute, ast.Call, ast.Constant, ast.Name, ast.Subscript)
#: Calls that type checkers or people read, and some to which order means nothing.
_CALLS_LEFT_ALONE = {"cast", "isinstance", "issubclass", "warn", "TypeVar"}
#: Names that Python or readers of code look at.
_FOR_READERS = ("__repr__", "_repr_")
#: Sequences: another operator than + would only be an error of types.
_SEQUENCES = (ast.JoinedStr, ast.Tuple, ast.List, ast.ListComp, ast.Dict)


class Place(NamedTuple):
    kind: Kind
    line: int
    #: Bytes of the file's text.
    start: int
    end: int
    new: str


@dataclass(frozen=True)
class CodeFault:
    #: A path below the root, with slashes.
    path: str
    place: Place
    text: str = field(repr=False)

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def old(self) -> str:
        there = self.text.encode()[self.place.start : self.place.end]
        return there.decode()

    @property
    def planted(self) -> str:
        """The whole text of the file with the fault."""
        there, (_, _, start, end, new) = self.text.encode(), self.place
        return b"".join((there[:start], new.encode(), there[end:])).decode()


def places(text: str) -> list[Place]:
    """Return where faults can be planted, each with one of them.

    >>> for place in places("if n < 8 and not seen(n + 1):\\n    'a < b'\\n"):
    ...     print(place.kind, place.new)
    rule (not (n < 8 and not seen(n + 1)))
    rule ((n < 8) or (not seen(n + 1)))
    comparison (n <= 8)
    bound 9
    bound 7
    rule (seen(n + 1))
    arithmetic (n - 1)
    bound 2
    bound 0
    """
    starts = [0]
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)

    def span(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        return start, starts[node.end_lineno - 1] + node.end_col_offset

    def words(part: ast.expr | str) -> str:
        if isinstance(part, str):
            return part
        there = text.encode()[slice(*span(part))].decode()
        return there if isinstance(part, _ATOMS) else f"({there})"

    found = []
    for kind, first, last, parts in _changes(ast.parse(text)):
        (start, middle), (other, end) = span(first), span(last)
        if kind == "table":
            there = text.encode()
            pieces = there[other:end], there[middle:other], there[start:middle]
            new = b"".join(pieces).decode()
        else:
            new = "".join(map(words, parts))
        found.append(Place(kind, first.lineno, start, end, new))
    return found


#: The first and last expression of what changes, which for tables change places, and
#: the parts of what it becomes.
Change: TypeAlias = tuple[Kind, ast.expr, ast.expr, Sequence[ast.expr | str]]


def _changes(node: ast.AST) -> Iterator[Change]:
    """Walk through what decides and computes, in the order of the text."""
    if isinstance(node, (ast.If, ast.IfExp)):
        if _typing_only(node.test) or _of_texts(node):
            orelse = node.orelse if isinstance(node.orelse, list) else []
            yield from _of_all(orelse)
            return
        yield from _negated(node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _negated(test)
    elif isinstance(node, ast.expr):
        yield from _changes_of(node)
    yield from _of_all(_inside(node))


def _of_all(nodes: Sequence[ast.AST]) -> Iterator[Change]:
    for node in nodes:
        yield from _changes(node)


def _inside(node: ast.AST) -> Sequence[ast.AST]:
    """Return the children that are no texts for people or type checkers."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Assert():
            return []
        case ast.Call() if _left_alone(node):
            return []
        case ast.Compare(left, ops, comparators):
            looked_up = [isinstance(op, (ast.In, ast.NotIn)) for op in ops]
            pairs = zip(looked_up, comparators, strict=True)
            return [left, *(one for among, of in pairs for one in _entries(of, among))]
        case ast.Subscript(value, index):
            return [value, *_entries(index, True)]
        case ast.ClassDef():
            return node.body
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if node.name.startswith(_FOR_READERS):
                return []
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            return [*defaults, *node.body]
        case ast.Lambda():
            return [*node.args.defaults, node.body]
        case ast.AnnAssign():
            typing = _name(node.annotation) == "TypeAlias"
            return [] if typing or node.value is None else [node.value]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [] if _of_a_type(name) else [node.value]
        case _:
            return [*ast.iter_child_nodes(node)]


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _entries(node: ast.expr, of_a_set: bool) -> Sequence[ast.expr]:
    """Return the entries of a tuple whose order says nothing, or that is an index."""
    return node.elts if of_a_set and isinstance(node, ast.Tuple) else [node]


def _left_alone(call: ast.Call) -> bool:
    name = _name(call.func)
    if name in ("startswith", "endswith", "log"):  # one of texts; a level and a text
        return name == "log" and len(call.args) > 1
    return name in _CALLS_LEFT_ALONE or name.endswith(("Error", "Warning"))


def _of_a_type(name: str) -> bool:
    """Tell by a name whether it stands for a type, or is read by Python alone."""
    return name.startswith("__") or (name[:1].isupper() and not name.isupper())


def _typing_only(test: ast.expr) -> bool:
    return _name(test) == "TYPE_CHECKING"


def _of_texts(node: ast.If | ast.IfExp) -> bool:
    """Tell whether a condition only chooses between two texts, such as "is", "are"."""
    return isinstance(node, ast.IfExp) and _text(node.body) and _text(node.orelse)


def _text(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr)


def _negated(test: ast.expr) -> Iterator[Change]:
    if not isinstance(test, (ast.UnaryOp, ast.Compare)):  # these have their own faults
        yield "rule", test, test, ["(not ", test, ")"]


def _changes_of(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare(left, ops, comparators):
            for changed in range(len(ops)):
                parts: list[ast.expr | str] = ["(", left]
                for i, (op, right) in enumerate(zip(ops, comparators, strict=True)):
                    word = _WORDS[type(op)]
                    parts += [f" {_OTHER[word] if i == changed else word} ", right]
                yield "comparison", node, node, [*parts, ")"]
        case ast.BinOp(left, op, right) if (word := _WORDS.get(type(op))) is not None:
            if not any(
                _text(one) or isinstance(one, _SEQUENCES) for one in (left, right)
            ):
                parts = ["(", left, f" {_OTHER[word]} ", right, ")"]
                yield "arithmetic", node, node, parts
        case ast.BoolOp(op, values):
            word = f" {_OTHER[_WORDS[type(op)]]} "
            parts = [part for value in values for part in (word, value)]
            yield "rule", node, node, ["(", *parts[1:], ")"]
        case ast.UnaryOp(ast.Not(), operand):
            yield "rule", node, node, ["(", operand, ")"]
        case ast.Constant(int() as value) if not isinstance(value, bool):
            yield "bound", node, node, [str(value + 1)]
            if value:
                yield "bound", node, node, [str(value - 1)]
        case ast.Dict(keys, values):
            named = [v for k, v in zip(keys, values, strict=True) if k is not None]
            yield from _exchanged(named)
        case ast.Tuple(entries, ast.Load()):
            yield from _exchanged(entries)


def _exchanged(entries: Sequence[ast.expr]) -> Iterator[Change]:
    for one, other in pairwise(entries):
        differ = ast.dump(one) != ast.dump(other)
        if differ and not any(_sentence(entry) for entry in (one, other)):
            yield "table", one, other, []


def _sentence(node: ast.expr) -> bool:
    """Tell whether an entry is a text for people, several, or an error to catch."""
    text = isinstance(node, ast.Constant) and " " in str(node.value)
    caught = _name(node).endswith("Error")
    return text or caught or isinstance(node, (ast.JoinedStr, ast.Starred))


def faults_of(root: Path, package: str) -> dict[str, list[CodeFault]]:
    """Return the faults of each file of a package, by its path."""
    found = {}
    for file in sorted((root / package).rglob("*.py")):
        path, text = file.relative_to(root).as_posix(), file.read_text("utf-8")
        found[path] = [CodeFault(path, place, text) for place in places(text)]
    return found


def drawn(faults: dict[str, list[CodeFault]], count: int, seed: int) -> list[CodeFault]:
    """Draw faults, at most one a file; a folder has the more, the more places it has.

    Every kind comes about as often as the files allow.
    """
    random = Random(seed)
    folders: dict[str, list[list[CodeFault]]] = {}
    for path, of_file in faults.items():
        if of_file:
            folders.setdefault(path.rpartition("/")[0], []).append(of_file)
    step = sum(map(len, faults.values())) / count
    kinds, result, place = Counter[Kind](), [], random.random() * step
    for name in sorted(folders):
        files, share = folders[name], 0
        place -= sum(map(len, files))
        while place < 0:
            place, share = place + step, share + 1
        # of each file a number that is the larger, the more places it has
        files.sort(key=lambda of_file: random.random() ** (1 / len(of_file)))
        for of_file in files[-share:] if share else []:
            has = {fault.place.kind for fault in of_file}
            kind = min(sorted(has), key=lambda one: (kinds[one], random.random()))
            kinds[kind] += 1
            chosen = [fault for fault in of_file if fault.place.kind == kind]
            result.append(random.choice(chosen))
    return result
