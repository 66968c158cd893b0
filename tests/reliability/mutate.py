"""Seeded damage to values of JSON and to bytes, the kind that checks are for.

A mutation keeps the structure of a file and changes what it says: numbers, lengths,
indices and pointers, counts far too large, NaN, parts left out, doubled or moved. The
gentle ones change values alone, to others that a careless reader takes: neighbours,
values of other elements, values just out of range. Most of these files can be read.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from random import Random
from typing import Any

import numpy as np

#: Numbers at the edges of the types that readers convert to.
NUMBERS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, -2, 7, 31, 32, 33, 127, 128, 255, 256, -128),
    *(2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31)),
    *(2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**30),
    *(0.5, -0.0, 1e-46, 1e-35, 1e-320, 3.4028235e38, 3.5e38, -3.5e38, 1e308, -1e308),
    *(math.nan, math.inf, -math.inf),
)
#: The share of gentle changes.
GENTLE = 0.7
#: Where deep nesting is put in once the text is written: nothing can write it.
DEEP = "@deep@"
_TEXTS = ("", "x", "0", "-1", "NaN", "inf", "1e400", "9" * 5000, "a\nb=1", "\0", "ß")
_TEXTS += ("[1, 2]", "[" * 3000, "1_000", "0x10", "\ud800", "reg:squarederror", DEEP)
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": 0}, [[1], 2])


def number(random: Random, near: Any = None) -> int | float:
    """Return a number of the edges, or one near (or made from) the one given."""
    plain = isinstance(near, (int, float)) and not isinstance(near, bool)
    if plain and random.random() < 0.5:
        moves = (near + 1, near - 1, -near, near * 2, near * 1000003, near + 0.5)
        return random.choice(moves)
    if random.random() < 0.3:
        return random.randrange(-3, 40)
    return random.choice(NUMBERS)


def near(random: Random, old: Any, n: int = 4) -> Any:
    """Return a number of the same type beside an old one, or just out of a range.

    Parameters
    ----------
    random : Random
    old : number, or the text of one
    n : int
        The length of what the number may point into.
    """
    if isinstance(old, str):
        return _near_text(random, old, n)
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        beside = (old + 1, old - 1, old + 2, -old, old ^ 1)
        return random.choice((*beside, n, n - 1, n + 1, 0, -1, 2, 3, 255, 256))
    single = np.float32(old)
    steps = [float(np.nextafter(single, np.float32(to))) for to in (-np.inf, np.inf)]
    steps += [float(np.nextafter(old, to)) for to in (-np.inf, np.inf)]
    others = (-old, 0.0, -0.0, old * 2, old + 1, 1.0, 1e-45, 1e-36, 2.0**24)
    return float(random.choice((*steps, *steps, *others)))


def _near_text(random: Random, text: str, n: int) -> str:
    """Change a number in a text, such as "4" or "[5E-1,1E0]"; others stay."""
    words = re.findall(r"[^\s,\[\]]+|[\s,\[\]]", text)
    at = [i for i, word in enumerate(words) if _number(word) is not None]
    if at:
        chosen = random.choice(at)
        words[chosen] = str(near(random, _number(words[chosen]), n))
    return "".join(words)


def _number(text: str) -> int | float | None:
    for make in (int, float):
        try:
            return make(text)
        except ValueError:
            continue
    return None


def gentle(random: Random, values: list[Any], beside: Any = near) -> None:
    """Change values of a list in place; its length and their types stay."""
    n = len(values)
    if not n:
        return
    i, j = random.randrange(n), random.randrange(n)
    kind = random.randrange(10)
    if kind <= 5:
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            at = random.randrange(n)
            values[at] = beside(random, values[at], n)
    elif kind <= 7:
        values[i], values[j] = values[j], values[i]
    elif kind == 8:
        values[i] = values[j]
    else:
        i, j = sorted((i, j))
        values[i : j + 1] = values[i : j + 1][::-1]


def value(random: Random, near: Any = None) -> Any:
    """Return a value that may be of another type."""
    draw = random.random()
    if draw < 0.6:
        found: Any = number(random, near)
        return str(found) if isinstance(near, str) and random.random() < 0.7 else found
    if draw < 0.8:
        return random.choice(_TEXTS)
    return copy.deepcopy(random.choice(_OTHERS))


def numbers(random: Random, values: list[Any], make: Any = number) -> None:
    """Change a list of numbers in place: elements, order or length."""
    n = len(values)
    kind = random.randrange(8)
    if kind <= 2 and n:
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            at = random.randrange(n)
            values[at] = make(random, values[at])
    elif kind == 3 and n:  # pointers: to itself, to the root, to any, past the end
        at = random.randrange(n)
        values[at] = random.choice((at, 0, random.randrange(n), n, n - 1))
    elif kind == 4 and n > 1:
        i, j = random.randrange(n), random.randrange(n)
        values[i], values[j] = values[j], values[i]
    elif kind == 5 and n:
        del values[random.randrange(n) :]
    elif kind == 6:
        values += [make(random, values[-1] if n else 0)] * random.choice((1, 2, 1000))
    elif n:
        at = random.randrange(n)
        values[at:at] = values[random.randrange(n) :]
    else:
        values.append(make(random))


def document(random: Random, root: Any) -> Any:
    """Return a changed copy of a value of JSON; numeric lists are one place."""
    root = pickle.loads(pickle.dumps(root))
    softly = random.random() < GENTLE
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(root))
        if not places:
            return value(random)
        parent, key = _place(random, places)
        here = parent[key]
        if softly:
            _gently(random, parent, key)
            continue
        kind = random.randrange(10)
        if isinstance(here, list) and kind < 6:
            numbers(random, here, value if random.random() < 0.2 else number)
        elif kind < 6:
            parent[key] = value(random, here)
        elif kind == 6:
            del parent[key]
        elif kind == 7:
            other, at = random.choice(places)
            parent[key] = copy.deepcopy(other[at])
        elif kind == 8 and isinstance(parent, dict):
            parent[random.choice((*_TEXTS[:4], f"{key}_2"))] = parent.pop(key)
        elif isinstance(parent, list):
            parent[key:key] = copy.deepcopy(parent[key : key + random.randrange(1, 4)])
        else:
            parent[key] = [here]
    return root


def _place(random: Random, places: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Choose a name first: a model has one ``iteration_indptr``, and many trees."""
    if random.random() < 0.3:
        return random.choice(places)
    names = sorted({key for _, key in places if isinstance(key, str)})
    name = random.choice(names) if names else None
    return random.choice([p for p in places if name is None or p[1] == name])


def _gently(random: Random, parent: Any, key: Any) -> None:
    """Change the numbers at a place, or swap it with what stands beside it."""
    here = parent[key]
    if isinstance(here, list) and here:
        plain = all(isinstance(v, (int, float, str)) for v in here)
        if plain and random.random() < 0.9:
            gentle(random, here)
        else:
            i, j = random.randrange(len(here)), random.randrange(len(here))
            here[i], here[j] = here[j], here[i]
    elif isinstance(here, (int, float, str)):
        parent[key] = near(random, here)
    if isinstance(parent, dict) and random.random() < 0.1:
        other = random.choice(sorted(parent))
        if type(parent[other]) is type(parent[key]):
            parent[key], parent[other] = parent[other], parent[key]


def _places(root: Any) -> Any:
    """Yield (container, key) of everything but the elements of lists of numbers."""
    if isinstance(root, dict):
        items: Any = list(root.items())
    elif isinstance(root, list) and not all(isinstance(v, (int, float)) for v in root):
        items = list(enumerate(root))
    else:
        return
    for key, child in items:
        yield root, key
        yield from _places(child)


def as_text(root: Any) -> bytes:
    """Return JSON, with NaN and infinities, and nested deep where that was asked."""
    text = json.dumps(root).encode("utf-8", "surrogatepass")
    deep = json.dumps(DEEP).encode()
    once = text.replace(deep, b"[" * 100_000 + b"]" * 100_000, 1)
    return once.replace(deep, b"[]")  # files stay small


def raw(random: Random, data: bytes) -> bytes:
    """Return the bytes with some flipped, cut out, doubled, moved or cut off."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        n = len(changed)
        if not n:
            break
        at, size = random.randrange(n), random.choice((1, 1, 2, 4, 8, 64))
        kind = random.randrange(7)
        if kind <= 1:
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            changed[at : at + size] = random.randbytes(size)
        elif kind == 3:
            del changed[at : at + size]
        elif kind == 4:
            changed[at:at] = changed[at : at + size] * random.choice((1, 3, 50))
        elif kind == 5:
            other = random.randrange(n)
            changed[at : at + size] = changed[other : other + size]
        else:
            del changed[at:]
    return bytes(changed)
