"""Files of skforge with another manifest, whose digests say that they are whole."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

#: In place of a value: that there is none.
NOTHING = object()


def manifest_of(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return json.loads(file.read("manifest.json"))


def changed(content: bytes, change: Callable[[Any], Any]) -> bytes:
    """Change the manifest as somebody who computes every digest anew would."""
    manifest, made = manifest_of(content), io.BytesIO()
    change(manifest)
    text = json.dumps(manifest).encode()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, text if name == "manifest.json" else old.read(name))
        new.comment = b"skforge " + sha256(text).hexdigest().encode()
    return made.getvalue()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from places(item, (*path, key))


def put(record: Any, place: tuple[Any, ...], value: Any) -> None:
    """Write a value to a path, or remove what is there."""
    *parents, last = place
    for key in parents:
        record = record[key]
    if value is NOTHING:
        del record[last]
    else:
        record[last] = value
