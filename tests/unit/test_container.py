"""The file format: what is written is read, and nothing else is."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import struct
import sys
import time
import zipfile

import numpy as np
import pytest

from skforge import InvalidModelError, UnsupportedModelError, _container
from skforge._container import Container, content_of, read_container, write_container
from skforge._version import FORMAT, __version__
from skforge.exceptions import ModelNotFoundError
from tests.refusals import error_of

ARRAYS = {
    "int": np.arange(7, dtype=np.int32),
    "big": np.arange(5, dtype=">f8"),
    "flag": np.array([True, False]),
    "text": np.array(["a", "späte"]),
    "none": np.zeros((0, 3), np.float32),
    "scalar": np.array(2.5),
    "strided": np.arange(24.0).reshape(4, 6).T[::2],
    "nan": np.array([np.nan, -0.0, np.inf, 5e-324]),
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.skforge"
    write_container(path, {"kind": "test", "n": [1, None, "x"]}, ARRAYS)
    return path


def refusal(path, kind=InvalidModelError):
    with pytest.raises(kind) as error:
        read_container(path)
    assert type(error.value) is kind
    return str(error.value).replace(os.fspath(path), "FILE")


def damage_of(path):
    """Return what is said to be wrong with a file."""
    text, start, end = (
        refusal(path),
        "FILE cannot be loaded: ",
        ". Save the model again.",
    )
    assert text.startswith(start) and text.endswith(end)
    return text.removeprefix(start).removesuffix(end)


@pytest.fixture(params=["at once", "by slices"])
def reading(request, monkeypatch):
    """Read small files as large ones are read, too."""
    if request.param == "by slices":
        monkeypatch.setattr(_container, "_LARGE", 0)


def test_what_is_written_is_read(file, reading):
    manifest, arrays = read_container(file)
    assert manifest["kind"] == "test"
    assert manifest["n"] == [1, None, "x"]
    assert arrays.keys() == ARRAYS.keys()
    for name, expected in ARRAYS.items():
        found = arrays[name]
        assert found.dtype == expected.dtype.newbyteorder("=")
        assert found.shape == expected.shape
        assert found.tobytes() == expected.astype(found.dtype).tobytes()


def test_equal_contents_are_equal_files(file, tmp_path):
    other = tmp_path / "b.skforge"
    write_container(other, {"kind": "test", "n": [1, None, "x"]}, ARRAYS)
    assert other.read_bytes() == file.read_bytes()


def test_any_zip_tool_and_numpy_read_it(file):
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "manifest.json"
        payload = archive.read("arrays/strided.npy")
        manifest = json.loads(archive.read("manifest.json"))
    assert np.array_equal(np.load(io.BytesIO(payload)), ARRAYS["strided"])
    digest = manifest["arrays"]["strided"]["sha256"]
    assert digest == hashlib.sha256(payload).hexdigest()


def test_objects_are_never_written(tmp_path):
    with pytest.raises(ValueError):
        write_container(tmp_path / "a", {}, {"x": np.array([object()])})
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_a_large_file_are_read_when_they_are_asked_for(file, monkeypatch):
    monkeypatch.setattr(_container, "_LARGE", 0)
    _, arrays = read_container(file)
    container = Container(content_of(file), str(file))
    content = file.read_bytes()
    longest = max(arrays, key=lambda name: arrays[name].nbytes)
    at = content.index(arrays[longest].tobytes())
    file.write_bytes(content[:at] + b"?" + content[at + 1 :])
    with pytest.raises(InvalidModelError, match=f"its array '{longest}' is damaged"):
        container[longest]
    file.write_bytes(content[:at])
    with pytest.raises(InvalidModelError, match="is damaged"):
        container[longest]
    with pytest.raises(KeyError):
        container["lost"]


def test_a_file_that_was_replaced_is_still_read(file, monkeypatch):
    monkeypatch.setattr(_container, "_LARGE", 0)
    _, arrays = read_container(file)
    container = Container(content_of(file), str(file))
    with _container.replacing(file) as beside:
        beside.write(b"another file")
    assert {name: container[name].tobytes() for name in container} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_arrays_begin_on_a_line_of_the_file(tmp_path):
    path = tmp_path / "a.skforge"
    arrays = {"x" * i: np.arange(i) for i in range(1, 70)}
    write_container(path, {}, arrays)
    whole = path.read_bytes()
    assert {whole.index(x.tobytes(), 200) % 64 for x in [*arrays.values()][9:]} == {0}


def test_files_beyond_4_gb_have_wider_numbers(tmp_path, monkeypatch, reading):
    path = tmp_path / "a.skforge"
    arrays = {"x": np.arange(100), "y": np.arange(3)}
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 300)  # of bytes, in place of 2 GB
    write_container(path, {"kind": "test"}, arrays)
    assert path.read_bytes().count(b"PK\x06\x07") == 1
    _, found = read_container(path)
    assert all(found[n].tobytes() == arrays[n].tobytes() for n in arrays)
    whole = path.read_bytes()
    for at in range(len(whole) - 700, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with contextlib.suppress(InvalidModelError):
            _, found = read_container(path)
            assert all(found[n].tobytes() == arrays[n].tobytes() for n in arrays)


def test_every_truncation_is_noticed(file, reading):
    whole = file.read_bytes()
    for size in {*range(0, len(whole), 23), *range(len(whole) - 60, len(whole))}:
        file.write_bytes(whole[:size])
        with pytest.raises(InvalidModelError):
            read_container(file)


def test_every_damaged_byte_is_noticed_or_harmless(tmp_path, reading):
    path = tmp_path / "a.skforge"
    arrays = {"x": np.arange(3), "y": np.array([np.nan])}
    write_container(path, {"kind": "test"}, arrays)
    whole = path.read_bytes()
    expected, _ = read_container(path)
    harmless = 0
    for at in range(0, len(whole), 3):  # a third of each number
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at * 5) % 8
        path.write_bytes(damaged)
        try:
            manifest, found = read_container(path)
        except InvalidModelError:
            continue
        harmless += 1
        assert manifest == expected
        assert all(found[n].tobytes() == arrays[n].tobytes() for n in arrays)
    # what aligns arrays; dates, attributes and versions of zip entries
    assert 0 < harmless < 0.4 * len(whole) / 3


def test_files_that_are_none(tmp_path):
    missing = tmp_path / "missing"
    said = refusal(missing, ModelNotFoundError)
    assert said == "FILE cannot be read: No such file or directory."
    assert refusal(tmp_path) == "FILE cannot be read: Is a directory."
    text = tmp_path / "text"
    text.write_text("tree\nversion=v4\n")
    assert damage_of(text) == "it is damaged (File is not a zip file)"


# ------------------------------------------------------------ other people's zips


def forge(path, manifest, members=None, compression=zipfile.ZIP_STORED, comment=None):
    """Write a container that vouches for whatever manifest it has."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("manifest.json", text)
        for name, payload in (members or {}).items():
            archive.writestr(name, payload)
        digest = hashlib.sha256(text).hexdigest().encode()
        archive.comment = b"skforge " + digest if comment is None else comment
    return path


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def described(payload, dtype="<i8", shape=(3,)):
    digest = hashlib.sha256(payload).hexdigest()
    return {"dtype": dtype, "shape": list(shape), "sha256": digest}


GOOD = npy(np.arange(3))
HEADER = "the header of its array 'x' is not what its manifest.json says"
HEAD = {"format": "skforge", "format_version": FORMAT}


def test_a_forged_file_that_is_right_loads(tmp_path):
    manifest = {**HEAD, "arrays": {"x": described(GOOD)}}
    path = forge(tmp_path / "a", manifest, {"arrays/x.npy": GOOD})
    assert read_container(path)[1]["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("facts", "wrote", "advice"),
    [
        ({"format_version": 1, "skforge_version": "0.1.0"}, "0.1.0",
         "Write it anew with skforge.convert(old, new), or `skforge convert OLD NEW`"),
        ({"format_version": FORMAT + 1, "skforge_version": "9.0", "news": {}}, "9.0",
         "Update skforge"),
        ({"format_version": 99}, "of an unknown version", "Update skforge"),
    ],
)  # fmt: skip
def test_the_releases_of_another_format_are_named(tmp_path, facts, wrote, advice):
    path = forge(tmp_path / "a", {**HEAD, **facts})
    assert refusal(path, UnsupportedModelError) == (
        f"FILE cannot be loaded: skforge {wrote} wrote it in format "
        f"{facts['format_version']}, and skforge {__version__} reads only format "
        f"{FORMAT}. {advice}."
    )


MANIFESTS = [
    (b"{", "its manifest.json is not JSON"),
    (b"\xff", "its manifest.json is not JSON"),
    (b"[" * 100_000, "its manifest.json is not JSON"),
    (b'{"format": NaN}', "its manifest.json is not JSON"),
    (b"[]", "its manifest.json was not written by skforge"),
    ({"format": "other"}, "its manifest.json was not written by skforge"),
    ({"format": "skforge"},
     "its format version None is not a positive whole number"),
    ({**HEAD, "format_version": True},
     "its format version True is not a positive whole number"),
    ({**HEAD, "format_version": "1"},
     "its format version '1' is not a positive whole number"),
    ({**HEAD, "format_version": 0},
     "its format version 0 is not a positive whole number"),
    (HEAD, "its manifest.json lists no arrays"),
    ({**HEAD, "arrays": []}, "its manifest.json lists no arrays"),
]  # fmt: skip
DESCRIPTIONS = [
    *(None, [], {}),
    *({**described(GOOD), name: 1} for name in ("more", "sha256")),
    *(
        described(GOOD, dtype)
        for dtype in (8, "|O", "<M8[s]", "<i8,<i8", "i8", "|V8", "|S0")
    ),
    *(
        {**described(GOOD), "shape": shape}
        for shape in (3, [True], [-3], [3.0], [1 << 48], [1] * 9)
    ),
]
#: Arrays that are not as described.
PAYLOADS = [
    (GOOD, {"sha256": "0" * 64}, "its array 'x' is damaged"),
    (GOOD, {"shape": [4]}, HEADER),
    (GOOD, {"shape": [3, 1]}, HEADER),
    (GOOD, {"dtype": "<f8"}, HEADER),
    (GOOD, {"shape": [1000]}, "the size of its array 'x' is wrong"),
    (GOOD, {"shape": [1 << 30]}, "the size of its array 'x' is wrong"),
    (npy(np.arange(1000)), {}, "the size of its array 'x' is wrong"),
    (GOOD + b"more", {}, HEADER),
    (npy(np.array([[1, 2], [3, 4]], order="F")), {"shape": [2, 2]}, HEADER),
    (npy(np.array([1, None, "x"], object), allow_pickle=True), {}, HEADER),
    (b"\x93NUMPY\x02\x00" + GOOD[8:], {}, HEADER),
]  # fmt: skip


FORGED = (
    *("", "{", "(" * 3000, "[" * 4000, "-" * 3000, "'" * 3, "\0", "{'a': 1}" * 9),
    *(
        "{'descr': '<i8', 'fortran_order': False, 'shape': (" + end
        for end in ("", "3,")
    ),
    *(
        f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
        for descr, order, shape in (
            ("'<i8'", "False", "(999999999999999,)"),
            ("'<i8'", "False", "(-3,)"),
            ("'<i8'", "False", "(10**9,)"),
            ("'<i8'", "False", "(" + "9" * 3000 + ",)"),
            ("'<i8'", "False", "(" + "1, " * 40 + "3)"),
            ("'<i8'", "True", "(3,)"),
            ("'<V99999999999'", "False", "(3,)"),
            ("'<i8,' * 99", "False", "(3,)"),
            ("'|O'", "False", "(3,)"),
            ("[('a', '<i8')]", "False", "(3,)"),
            ("().__class__", "False", "(3,)"),
        )
    ),
)


def of_x(payload, **facts):
    """Return the manifest of one array, and its entry."""
    described_so = {"x": {**described(payload), **facts}}
    return {**HEAD, "arrays": described_so}, {"arrays/x.npy": payload}


def with_header(text):
    """NumPy's reader raises TokenError, RecursionError and more on some of these."""
    length = struct.pack("<H", len(text))
    payload = GOOD[:8] + length + text.encode() + np.arange(3).tobytes()
    return of_x(payload)


X, ENTRY = of_x(GOOD)
ZEROS = npy(np.zeros(1 << 20, np.int64))
BOMB = "its entry {!r} is compressed or has a wrong size"
ENTRIES = "its entries are not those that its manifest.json lists"
#: A manifest, its members, what is said of them, and how they are written.
DAMAGED = [
    *((manifest, {}, reason) for manifest, reason in MANIFESTS),
    *(({**HEAD, "arrays": {"x": facts}}, ENTRY,
       "the description of its array 'x' is wrong") for facts in DESCRIPTIONS),
    *((*of_x(payload, **facts), reason) for payload, facts, reason in PAYLOADS),
    *((*with_header(text), HEADER) for text in FORGED),  # none is evaluated
    (*of_x(GOOD, shape=[1 << 45]), "its arrays are too large"),
    *((X, members, ENTRIES)
      for members in ({}, {"arrays/y.npy": GOOD}, {**ENTRY, "../x": b""})),
    *(({**HEAD, "arrays": {}}, {}, "the checksum of its manifest.json is wrong",
       zipfile.ZIP_STORED, comment)
      for comment in (b"", b"skforge ", b"skforge " + b"0" * 64)),
    (*of_x(ZEROS, shape=[1 << 20]), BOMB.format("manifest.json"), zipfile.ZIP_DEFLATED),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", DAMAGED, ids=[f"{number}, {case[2]}" for number, case in enumerate(DAMAGED)]
)
def test_what_is_damaged_is_named(tmp_path, case):
    manifest, members, reason, *how = case
    path = forge(tmp_path / "a", manifest, members, *how)
    assert damage_of(path) == reason
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["letter.txt"], "it has no manifest.json, so skforge did not write it"),
        (["manifest.json"] * 2,
         "its directory lists an entry twice, or too many entries"),
    ],
)  # fmt: skip
def test_other_zips(tmp_path, names, said):
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
    assert damage_of(tmp_path / "a") == said


def test_sizes_are_compared_with_the_file(tmp_path):
    manifest = {**HEAD, "arrays": {"x": described(GOOD)}}
    path = forge(tmp_path / "a", manifest, {"arrays/x.npy": GOOD})
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")  # of the last entry in the directory
    struct.pack_into("<II", content, entry + 20, 1 << 31, 1 << 31)
    path.write_bytes(content)
    assert damage_of(path) == BOMB.format("arrays/x.npy")


def test_a_manifest_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(_container, "MANIFEST_BYTES", 100)
    path = forge(tmp_path / "a", {**HEAD, "arrays": {}, "x": "x" * 100})
    assert damage_of(path) == "its manifest.json is too large"


# ------------------------------------------------------------ writing in one step


class Killed(BaseException):
    """What no handler of errors catches."""


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_an_interruption_leaves_the_old_file(file, monkeypatch, step):
    before = file.read_bytes()

    def killed(*_args, **_options):
        raise Killed

    monkeypatch.setattr(os, step, killed)
    with pytest.raises(Killed):
        write_container(file, {}, {})
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_full_disk_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    said = error_of(OSError, write_container, file, {}, {})
    assert said == "[Errno 28] No space left on device"
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_all_is_on_the_disk_before_the_name_is(file, monkeypatch):
    done = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        done.append(f"sync {kind} of {os.fstat(descriptor).st_size > 0}")
        real_sync(descriptor)

    def replace(old, new):
        assert os.path.getsize(old) > 0
        done.append("replace")
        real_replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    write_container(file, {}, {})
    assert done[:2] == ["sync file of True", "replace"]
    assert [re.sub(" of .*", "", step) for step in done[2:]] == ["sync directory"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_what_killed_saves_left_goes_after_an_hour(file):
    folder = file.parent
    old = folder / f".{file.name}.{'0a' * 8}.tmp"
    new = folder / f".{file.name}.{'0b' * 8}.tmp"
    others = [folder / ".b.skforge.0123456789abcdef.tmp", folder / ".a.skforge.x.tmp"]
    long_ago = time.time() - 4000
    for path in (old, new, *others):
        path.write_bytes(b"unfinished")
        if path is not new:
            os.utime(path, (long_ago, long_ago))
    write_container(file, {}, {})
    assert sorted(folder.iterdir()) == sorted([file, new, *others])


def test_permissions_are_those_of_any_new_file(file, tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert file.stat().st_mode == plain.stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege")
def test_a_link_stays_a_link(file, tmp_path):
    link = tmp_path / "latest"
    link.symlink_to(file)
    write_container(link, {"kind": "new"}, {})
    assert link.is_symlink()
    assert read_container(file)[0]["kind"] == "new"
