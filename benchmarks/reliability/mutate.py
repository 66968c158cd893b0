"""Seeded damage to values of JSON and to bytes, the kind that checks are for.

A mutation keeps the structure of a file and changes what it says: numbers, lengths,
indices and pointers, counts far too large, NaN, parts left out, doubled or moved.
"""

from __future__ import annotations

import copy
import json
import math
from random import Random
from typing import Any

#: Numbers at the edges of the types that readers convert to.
NUMBERS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, -2, 7, 31, 32, 33, 127, 128, 255, 256, -128),
    *(2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31)),
    *(2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**30),
    *(0.5, -0.0, 1e-46, 1e-35, 1e-320, 3.4028235e38, 3.5e38, -3.5e38, 1e308, -1e308),
    *(math.nan, math.inf, -math.inf),
)
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
    root = copy.deepcopy(root)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(root))
        if not places:
            return value(random)
        parent, key = random.choice(places)
        here = parent[key]
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
