from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

import skforge.compiler.target as target_module
from skforge.compiler.target import Target
from skforge.exceptions import TargetError
from tests.refusals import error_of
from tests.simt import EMULATED_SOURCE

MAKERS = {
    "host": Target.host, "v1": lambda: Target.x86_64("v1"),
    "v2": lambda: Target.x86_64("v2"), "v3": lambda: Target.x86_64("v3"),
    "v4": lambda: Target.x86_64("v4"), "aarch64": Target.aarch64, "cuda": Target.cuda,
    "hip": Target.hip,
}  # fmt: skip


def message(call: object, *args: object) -> str:
    return error_of(TargetError, call, *args)


@pytest.mark.parametrize("name", MAKERS)
def test_is_a_plain_value(name):
    target = MAKERS[name]()
    assert pickle.loads(pickle.dumps(target)) == target
    assert Target.from_json(target.to_json()) == target
    assert len({target, MAKERS[name]()}) == 1
    assert eval(repr(target), {"Target": Target}) == target
    with pytest.raises(FrozenInstanceError):
        target.n_cores = 3


@pytest.mark.parametrize(
    ("level", "bits", "masks", "gather", "registers", "entries"),
    [
        ("v1", 128, False, False, 16, 0),
        ("v2", 128, False, False, 16, 16),
        ("v3", 256, False, True, 16, 16),
        ("v4", 512, True, True, 32, 16),
    ],
)
def test_x86_64_levels(level, bits, masks, gather, registers, entries):
    target = Target.x86_64(level)
    assert target.vector_bits == bits
    assert target.has_mask_registers is masks
    assert target.has_gather is gather
    assert target.vector_registers == registers
    assert target.permuted_bytes == entries


def test_byte_permutes_need_vbmi():
    target = Target.x86_64("v4")
    with_vbmi = replace(target, features=target.features + ",+avx512vbmi")
    assert with_vbmi.permuted_bytes == 128


def test_a_narrower_width_than_the_cpu_has():
    target = replace(Target.x86_64("v4"), vector_bits=256)
    assert not target.has_mask_registers
    assert target.lanes(32) == 8
    assert target.permuted_bytes == 16


def test_aarch64_facts():
    target = Target.aarch64()
    facts = (target.arch, target.vector_bits, target.vector_registers)
    assert facts == ("aarch64", 128, 32)
    assert not target.has_mask_registers
    assert not target.has_gather
    assert target.permuted_bytes == 64


def test_host_is_what_llvm_finds():
    from llvmlite import binding

    host = Target.host()
    assert host is Target.host()
    assert host.cpu == binding.get_host_cpu_name()
    assert host.arch in ("x86_64", "aarch64")
    assert host.has("avx2") == binding.get_host_cpu_features().get("avx2", False)
    assert host.l1_bytes >= 8 << 10
    assert host.l2_bytes > host.l1_bytes
    host.check_runs_here()


def test_an_arm_host_has_neon_where_llvm_finds_nothing(monkeypatch):
    facts = "aarch64-unknown-linux-gnu", "generic", "-sve"
    monkeypatch.setattr(target_module, "_machine", lambda: "aarch64")
    monkeypatch.setattr(target_module, "_known_by_llvm", lambda: facts)
    host = target_module._host.__wrapped__()
    assert host.features == "-sve,+fp-armv8,+neon"
    assert host.permuted_bytes == 64
    monkeypatch.setattr(Target, "host", classmethod(lambda cls: host))
    Target.aarch64().check_runs_here()


def test_cache_sizes_are_read_from_the_system(tmp_path):
    for number, (level, kind, size) in enumerate(
        [
            ("1", "Data", "48K"),
            ("1", "Instruction", "64K"),
            ("2", "Unified", "1M"),
            ("3", "Unified", "36608K"),
            ("x", "Unified", "?"),
        ]
    ):
        entry = tmp_path / f"index{number}"
        entry.mkdir()
        for name, text in [("level", level), ("type", kind), ("size", size)]:
            (entry / name).write_text(text + "\n")
    found = target_module._cache_bytes(tmp_path)
    assert found == (48 << 10, 1 << 20, 36608 << 10)


@pytest.mark.parametrize(
    ("name", "kind", "cpu"),
    [
        ("x86-64-v2", "cpu", "x86-64-v2"),
        ("x86-64-v4", "cpu", "x86-64-v4"),
        ("aarch64", "cpu", "generic"),
        ("cuda", "cuda", "sm_80"),
        ("cuda:sm_90", "cuda", "sm_90"),
        ("hip", "hip", "gfx90a"),
        ("hip:gfx1030", "hip", "gfx1030"),
        ("emulated", "emulated", "sm_80"),
        (EMULATED_SOURCE, EMULATED_SOURCE, "sm_80"),
    ],
)
def test_parse(name, kind, cpu):
    target = Target.parse(name)
    assert (target.kind, target.cpu) == (kind, cpu)
    assert Target.parse(target) is target
    assert target.is_gpu == (kind != "cpu")


def test_parse_names_this_machine():
    assert Target.parse("auto") is Target.parse("cpu") is Target.host()


def test_gpu_facts():
    cuda, hip = Target.cuda("sm_90"), Target.hip()
    assert (cuda.warp_size, cuda.shared_bytes) == (32, 227 << 10)
    assert (hip.warp_size, hip.shared_bytes) == (64, 64 << 10)
    assert cuda.max_threads_per_block == 1024
    assert Target.x86_64("v3").warp_size == 1


def test_unknown_names():
    assert message(Target.parse, "gpu") == (
        "Unknown target 'gpu'; use 'auto', 'cpu', 'x86-64-v2' to 'x86-64-v4', "
        "'aarch64', 'cuda', 'hip', 'emulated', 'emulated-source' or a skforge.Target."
    )
    assert message(Target.parse, 3) == "target must be a str or a Target, not int."
    assert message(Target.x86_64, "v5") == (
        "the level of x86-64 must be one of v1, v2, v3, v4. Got 'v5' instead."
    )
    assert message(Target.parse, "cuda:sm_1") == (
        "the CUDA architecture must be one of sm_75, sm_80, sm_86, sm_89, sm_90, "
        "sm_100, sm_120. Got 'sm_1' instead."
    )
    assert message(Target.parse, "hip:gfx1") == (
        "the HIP architecture must be one of gfx908, gfx90a, gfx942, gfx1030, "
        "gfx1100. Got 'gfx1' instead."
    )


def test_contradicting_facts():
    v3 = Target.x86_64("v3")
    assert message(lambda: replace(v3, vector_bits=512)) == (
        "vector_bits=512 does not fit 'x86-64-v3', whose features allow up to 256; "
        "use 128, 256 or 512 within that."
    )
    assert message(lambda: replace(v3, kind="tpu")) == (
        "the kind of a target must be one of cpu, cuda, hip, emulated, "
        "emulated-source. Got 'tpu' instead."
    )
    assert message(lambda: replace(v3, features="avx2")) == (
        "Target features are written like '+avx2,-fma', but one is 'avx2'."
    )


def test_what_cannot_run_here(monkeypatch):
    host = Target.x86_64("v2")
    monkeypatch.setattr(Target, "host", classmethod(lambda cls: host))
    Target.x86_64("v1").check_runs_here()
    assert message(Target.x86_64("v3").check_runs_here) == (
        "Target 'x86-64-v3' needs CPU features that this machine lacks: avx, avx2, "
        "bmi, bmi2, f16c, fma, lzcnt, movbe, xsave; use target='cpu'."
    )
    assert message(Target.aarch64().check_runs_here) == (
        "Code for aarch64 does not run on this x86_64 machine; use target='cpu', or "
        "compile on an aarch64 machine."
    )
    mac = replace(host, triple="x86_64-apple-macosx11.0")
    assert message(mac.check_runs_here).startswith(
        "Code for x86_64-apple-macosx11.0 does not run on x86_64-"
    )
    assert message(Target.cuda().check_runs_here) == (
        "Target 'sm_80' is a GPU. compile_forest checks whether this machine has one; "
        "inspect shows the code for it on any machine."
    )
    Target.parse("emulated").check_runs_here()


def test_from_json_refuses_what_is_not_a_target():
    good = json.loads(Target.x86_64("v3").to_json())
    keys = ", ".join(good)
    assert message(Target.from_json, "{") == (
        "Not a target: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)."
    )
    shape = f"Not a target: expected an object with the keys {keys}."
    assert message(Target.from_json, "[]") == shape
    assert message(Target.from_json, json.dumps({**good, "extra": 1})) == shape
    assert message(Target.from_json, json.dumps({**good, "n_cores": "2"})) == (
        "Not a target: 'n_cores' must be int, not str."
    )


def test_text():
    assert str(Target.x86_64("v3")) == "cpu x86-64-v3, 256-bit vectors, 1 core"
    assert str(Target.hip()) == "hip gfx90a, warps of 64"
