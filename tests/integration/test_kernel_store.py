"""Kernels kept on disk with their arrays: found when right, and never when not."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

import skforge
from skforge import CompiledForest, Schedule, compile_forest
from skforge.compiler.target import Target
from skforge.engine.kernels import KernelCache, KernelStore
from skforge.exceptions import VerificationError
from skforge.prediction import kernel_checks
from skforge.runtime import object_cache, stored_kernels
from skforge.schedule import directives
from tests.noted import calls_of

X, Y = make_classification(400, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)
MODELS = [
    RandomForestClassifier(4, max_depth=6, random_state=seed).fit(X, Y)
    for seed in (0, 1)
]
SIZES = (1, 7, 200)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder of kernels of an empty cache."""
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    monkeypatch.delenv("SKFORGE_VERIFY", raising=False)
    monkeypatch.setattr(object_cache, "_SAID", set())
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def lowered(monkeypatch):
    """Return the list of what was lowered and encoded."""
    return calls_of(monkeypatch, KernelCache, "lowered")


def plain(model=MODELS[0], schedule=None, **how):
    return CompiledForest(model, tuning="off", schedule=schedule or Schedule(), **how)


def check(compiled, model=MODELS[0], sizes=SIZES):
    for size in sizes:
        expected = model.predict_proba(X[:size])
        assert compiled.predict_proba(X[:size]).tobytes() == expected.tobytes()


def files(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


def test_nothing_is_lowered_again_for_the_same_forest(folder, lowered, tmp_path):
    first = CompiledForest(MODELS[0], tuning="off").fit(X)
    sizes = [last or start for start, last in first.schedule_ if start <= len(X)]
    check(first, sizes=sizes)
    kernels = len(lowered)
    assert len(files(folder)) == kernels == len({call[1] for call in lowered}) > 1
    skforge.save(first, tmp_path / "a.skforge")
    for again in (
        CompiledForest(MODELS[0], tuning="off").fit(X),
        pickle.loads(pickle.dumps(first)),
        skforge.load(tmp_path / "a.skforge"),
    ):
        check(again, sizes=sizes)
        assert (again.apply(X) == MODELS[0].apply(X)).all()
    # leaf numbers have a kernel of their own, which the first of these compiled
    assert len(lowered) == len(files(folder)) == kernels + 1


def test_arrays_lie_on_cache_lines_with_room_behind_each(folder):
    plain().fit(X)
    (path,) = files(folder)
    content = object_cache.read(path.name, "kernels")
    _, stored = stored_kernels._unpacked(content)
    assert len(stored) > 2
    last = content.ctypes.data + len(content)
    for data in stored.values():
        assert data.ctypes.data % 64 == 0
        assert data.ctypes.data + data.nbytes + 64 <= last
    made = compile_forest(MODELS[0], Schedule()).compiler
    for name, data in made.kernel(Schedule(), "accumulator").stored().data.items():
        assert data.tobytes() == stored[name].tobytes()


FOREST = skforge.load_forest(MODELS[0])


def facts(forest=FOREST, schedule=None, target=None, reduction="exact"):
    target = target or Target.host()
    store = KernelStore(forest, target, reduction)
    return store._key(schedule or Schedule(), "accumulator")


def test_all_that_a_kernel_depends_on_is_in_its_key(monkeypatch):
    keys = [
        facts(),
        facts(skforge.load_forest(MODELS[1])),
        facts(schedule=Schedule().interleave("tree", 2)),
        facts(target=Target.x86_64("v2")),
        facts(reduction="fast"),
    ]
    monkeypatch.setattr(object_cache, "sources", lambda: "edited")
    keys.append(facts())
    assert len(set(keys)) == len(keys)


COMPILER = Path(object_cache.__file__).parents[1]


def test_a_compiler_that_moved_finds_its_kernels_and_an_edited_one_does_not(
    folder, lowered, tmp_path, monkeypatch
):
    object_cache.sources.cache_clear()
    check(plain().fit(X))
    assert len(lowered) == 1
    moved = tmp_path / "moved"
    shutil.copytree(COMPILER, moved, copy_function=shutil.copyfile)
    monkeypatch.setattr(object_cache, "__file__", str(moved / "a" / "b.py"))
    edited = moved / "compiler" / "passes" / "mir" / "unroll_loops.py"
    text = edited.read_text("utf-8")
    try:
        for content, kernels in ((text, 1), (text + " ", 2), (text, 2)):
            edited.write_text(content, "utf-8")
            object_cache.sources.cache_clear()
            check(plain().fit(X))
            assert len(lowered) == kernels
        edited.rename(edited.with_name("renamed.py"))
        object_cache.sources.cache_clear()
        check(plain().fit(X))
        assert len(lowered) == 3
    finally:
        object_cache.sources.cache_clear()


# ------------------------------------------------------------ damage


def test_no_damaged_byte_is_used(folder, lowered):
    check(plain().fit(X))
    (path,) = files(folder)
    whole = path.read_bytes()
    assert len(lowered) == 1
    for at in [*range(200), *range(200, len(whole), 997), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        assert object_cache.read(path.name, "kernels") is None
    for size in (0, 1, 112, 113, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert object_cache.read(path.name, "kernels") is None
    path.write_bytes(whole + b"x")
    check(plain().fit(X))  # compiled, and written again
    assert len(lowered) == 2
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", ["junk", "short", "header", "object"])
def test_junk_under_a_right_digest_is_compiled_anew(kind, folder, lowered):
    plain().fit(X)
    (path,) = files(folder)
    content = object_cache.read(path.name, "kernels").tobytes()
    junk = {
        "junk": b"junk" * 50,
        "short": content[:-64],
        "header": (8).to_bytes(8, "little") + b"[1, 2]  ",
        "object": content.replace(b"ELF", b"FLE", 1),
    }[kind]
    object_cache.write(path.name, "kernels", [junk])
    check(plain().fit(X))
    assert len(lowered) == 2
    assert object_cache.read(path.name, "kernels").tobytes() == content


def test_a_stored_kernel_of_another_forest_is_found_before_it_answers(folder):
    plain(MODELS[0]).fit(X)
    (own,) = files(folder)
    content = object_cache.read(own.name, "kernels").tobytes()
    plain(MODELS[1]).fit(X)
    (other,) = set(files(folder)) - {own}
    object_cache.write(other.name, "kernels", [content])
    with pytest.raises(VerificationError):
        plain(MODELS[1]).fit(X)


def test_the_rows_that_kernels_are_compared_on_are_scored_once(
    folder, tmp_path, monkeypatch
):
    first = plain().fit(X)
    check(first)
    skforge.save(first, tmp_path / "a.skforge")
    (sample,) = files(folder.parent / "samples")
    walked = calls_of(monkeypatch, kernel_checks.reference, "reference_raw")
    check(skforge.load(tmp_path / "a.skforge"))
    assert not walked
    for junk in (b"", b"junk", sample.read_bytes()[:-1]):
        sample.write_bytes(junk)
        again = skforge.load(tmp_path / "a.skforge")
        assert again.forest_.n_trees == 4  # it is whole, and compares its kernels
        check(again)
    assert len(walked) == 3


def test_stored_scores_that_are_wrong_are_made_anew(folder, tmp_path):
    first = plain().fit(X)
    check(first)
    skforge.save(first, tmp_path / "a.skforge")
    (path,) = files(folder.parent / "samples")
    content = object_cache.read(path.name, "samples").tobytes()
    scores = kernel_checks._scored(first.forest_)["scores"]
    assert scores.tobytes() in content
    wrong = content.replace(scores.tobytes(), (scores + 1).tobytes())
    object_cache.write(path.name, "samples", [wrong])
    check(skforge.load(tmp_path / "a.skforge"))
    assert object_cache.read(path.name, "samples").tobytes() == content


def test_a_kernel_that_is_wrong_about_the_stored_rows_never_answers(folder, tmp_path):
    saved = []
    for model in MODELS:
        fast = plain(model).fit(X)
        check(fast, model)
        skforge.save(fast, tmp_path / "a.skforge")
        saved.append((*(set(files(folder)) - {path for path, _ in saved}), model))
    (first, _), (second, _) = saved
    content = object_cache.read(first.name, "kernels").tobytes()
    object_cache.write(second.name, "kernels", [content])
    with pytest.raises(VerificationError, match=r"random row \d+ around the model"):
        skforge.load(tmp_path / "a.skforge").predict(X)


# ------------------------------------------------------------ what is kept


@pytest.mark.parametrize("how", ["off", "verified", "dumped"])
def test_nothing_is_kept_where_the_passes_are_to_run(how, folder, lowered, monkeypatch):
    name = {"off": "CACHE", "verified": "VERIFY", "dumped": "DUMP"}[how]
    value = {"off": "off", "verified": "1", "dumped": "hir"}[how]
    monkeypatch.setenv(f"SKFORGE_{name}", value)
    for _ in range(2):
        plain().fit(X)
    assert files(folder) == []
    assert len(lowered) == 2


def test_kernels_of_other_packages_are_not_kept(folder, monkeypatch):
    monkeypatch.setattr(directives.Interleave, "__module__", "elsewhere")
    plain(schedule=Schedule().interleave("tree", 2)).fit(X)
    assert files(folder) == []


def test_kernels_that_nothing_compares_are_not_kept(folder):
    compile_forest(MODELS[0], Schedule()).predict_raw(X)
    assert files(folder) == []


def test_a_large_kernel_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(object_cache, "MOST_OF_ONE", 1000)
    check(plain().fit(X))
    assert files(folder) == []


def test_large_kernels_make_room_at_once(folder, monkeypatch):
    monkeypatch.setattr(object_cache, "_LARGE", 1)
    monkeypatch.setattr(object_cache, "MOST_FILES", 1)
    for model in MODELS:
        check(plain(model).fit(X), model)
        assert len(files(folder)) == 1


def test_the_code_of_a_stored_kernel_is_shown(folder, lowered):
    texts = [plain().fit(X).inspect(level) for level in ("llvm", "asm")]
    assert files(folder)
    assert [plain().fit(X).inspect(level) for level in ("llvm", "asm")] == texts
