"""A name means one thing: no class or alias has the name of another."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2] / "skforge"
#: What one level of the IR has and the next one, too, has one name on both.
LEVELS = {"compiler/ir/mir", "compiler/ir/lir"}


def test_no_two_classes_or_aliases_have_one_name():
    places: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(ROOT.rglob("*.py")):
        for name in names(ast.parse(file.read_text(encoding="utf-8"))):
            places[name].append(file.relative_to(ROOT))
    assert len(places) > 700
    twice = {
        name: [*map(str, files)]
        for name, files in places.items()
        if len(files) > 1 and {f.parent.as_posix() for f in files} != LEVELS
    }
    assert twice == {}


def names(tree: ast.Module) -> list[str]:
    """Return the classes of a module and its aliases, which have small letters."""
    found = []
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.append(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.append(name)
    return [n for n in found if n.lstrip("_")[:1].isupper() and not n.isupper()]
