"""Run tests as on an Arm machine: qemu plays the CPU, Debian's arm64 is the system.

``python -m benchmarks.emulated ROOT`` makes the system in the folder ROOT if it is not
there, and runs a slice of the tests that a platform can change. Mounts, and the rule
that hands Arm programs to qemu, are in namespaces of their own, so nothing of them is
left. It needs root, Linux 6.7, Python 3.11, mmdebstrap and qemu-user-static.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated

import typer

HERE = Path(__file__).resolve().parents[1]

#: What runs where no tests are named: targets, text and objects of LLVM, both linkers,
#: exports, and each layout.
SLICE = (
    "tests/unit/test_target.py",
    "tests/integration/test_llvm_jit.py",
    "tests/integration/test_llvm_ops.py",
    "tests/integration/test_elf.py",
    "tests/exactness/test_targets.py",
    "tests/outside/test_export.py",
)

#: Debian's packages; the last two are for tests of exports.
PROGRAMS = "python3,libgomp1,libstdc++6,bash,coreutils,libc-bin,gcc,libc6-dev"

#: Packages of the tests that need what an emulated CPU does not have.
LEFT_OUT = "nvidia-", "mypy", "ruff"

#: The ELF header of programs for Linux on 64-bit Arm, and the bits that are compared.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"

_N1 = """fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid
asimdrdm lrcpc dcpop asimddp ssbs"""
_V1 = f"""{_N1} jscvt fcma sha3 sha512 sve asimdfhm dit uscat ilrcpc flagm paca pacg
dcpodp svei8mm svebf16 i8mm bf16 dgh rng"""
_V2 = f"{_V1} sb sve2 sveaes svepmull svebitperm svesha3 flagm2 frint bti"

#: CPUs by LLVM's names: what qemu plays for each, and what Linux says of them, since
#: qemu's /proc/cpuinfo is of the CPU below. SVE has 256 bits on V1, and 128 on V2.
CPUS = {
    "neoverse-n1": ("neoverse-n1", "0xd0c", _N1),
    "neoverse-v1": ("max,pauth-impdef=on,sve-max-vq=2", "0xd40", _V1),
    "neoverse-v2": ("max,pauth-impdef=on,sve-max-vq=1", "0xd4f", _V2),
}

#: In a namespace of its own: rule, mounts, and the program.
INSIDE = """set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s "$RULE" > /proc/sys/fs/binfmt_misc/register
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount --rbind /sys "$ROOT/sys"
mount --bind "$HERE" "$ROOT/opt/skforge"
mount -o remount,bind,ro "$ROOT/opt/skforge"
[ -z "$CPUINFO" ] || mount --bind "$CPUINFO" "$ROOT/proc/cpuinfo"
[ -z "$MODELS" ] || mount --bind "$MODELS" "$ROOT/opt/models"
exec nice -n 19 chroot "$ROOT" "$@"
"""


VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PYTHONPATH": "/opt/packages:/opt/skforge",
    "PYTHONPYCACHEPREFIX": "/var/cache/python",
    "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    "SKFORGE_MODELS": "/opt/models",
}


def build(root: Path, suite: str, mmdebstrap: str) -> None:
    options = ["--variant=extract", "--architectures=arm64", f"--include={PROGRAMS}"]
    _run(mmdebstrap, *options, "--skip=check/qemu", suite, str(root))
    if not (root / "bin/sh").exists():
        (root / "bin/sh").symlink_to("bash")
    for name in ("opt/skforge", "opt/models", "opt/packages", "root", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    import tomllib  # of Python 3.11

    version = os.readlink(root / "usr/bin/python3").removeprefix("python")
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    wanted = [one for one in wanted if not one.startswith(LEFT_OUT)]
    into = ["--target", str(root / "opt/packages"), "--python-version", version]
    wheels = ["--only-binary=:all:", "--implementation=cp", "--no-compile"]
    for minor in range(36, 16, -1):
        wheels.append(f"--platform=manylinux_2_{minor}_aarch64")
    wheels.append("--platform=manylinux2014_aarch64")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *into, *wheels]
    _run(*pip, *(one for one in wanted if not one.startswith("xgboost")))
    # without NCCL, which is for GPUs
    _run(*pip, "--no-deps", *(one for one in wanted if one.startswith("xgboost")))


def _run(*command: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True)


def inside(root: Path, qemu: str, cpu: str, *command: str) -> int:
    rule = f":skforge:M::{MAGIC}:{MASK}:{qemu}:PF"  # F: opened now, before chroot
    models = os.environ.get("SKFORGE_MODELS", "")
    qemu_cpu, *facts = CPUS.get(cpu, (cpu,))
    outer = {"ROOT": str(root), "HERE": str(HERE), "MODELS": models, "RULE": rule}
    outer["CPUINFO"] = _cpuinfo(root, *facts) if facts else ""
    variables = {**VARIABLES, "QEMU_CPU": qemu_cpu}
    own = "--user --map-root-user --mount --pid --fork --kill-child --mount-proc"
    sets = [f"{name}={value}" for name, value in variables.items()]
    program = ["/usr/bin/env", "-i", "-C", "/opt/skforge", *sets, *command]
    return subprocess.run(
        ["unshare", *own.split(), "sh", "-c", INSIDE, "sh", *program],
        env={**os.environ, **outer},
        check=False,
    ).returncode


def _cpuinfo(root: Path, part: str, features: str) -> str:
    file = root / f"tmp/cpuinfo-{part}"
    lines = [
        f"processor\t: {i}\nBogoMIPS\t: 100.00" for i in range(os.cpu_count() or 1)
    ]
    who = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1"
    facts = f"Features\t: {' '.join(features.split())}\n{who}\nCPU part\t: {part}"
    file.write_text(
        "".join(f"{line}\n{facts}\nCPU revision\t: 1\n\n" for line in lines)
    )
    return str(file)


def table(report: Path) -> str:
    """Return a table of files from the report of pytest."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case in ET.parse(report).iterfind(".//testcase[@time]"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        of_file = counts[case.get("classname", "").replace(".", "/")]
        of_file[kinds.pop() if kinds else "passed"] += 1
        of_file["seconds"] += round(float(case.get("time", 0)))
    lines = ["| file | passed | failed | skipped | s |", "|---|---|---|---|---|"]
    for name, of in counts.items():
        failed = of["failure"] + of["error"]
        numbers = of["passed"], failed, of["skipped"], of["seconds"]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def main(
    root: Annotated[Path, typer.Argument(help="Folder of the emulated system.")],
    tests: Annotated[
        list[str] | None, typer.Argument(help="Files of tests; default: a slice.")
    ] = None,
    cpu: Annotated[
        str, typer.Option(help=f"{', '.join(CPUS)}, or one of qemu-aarch64 -cpu help.")
    ] = "neoverse-n1",
    seconds: Annotated[int, typer.Option(help="When to stop, with the making.")] = 540,
    program: Annotated[
        str, typer.Option(help="Run this line of a shell there, and no tests.")
    ] = "",
    suite: Annotated[str, typer.Option(help="Debian's release.")] = "bookworm",
    qemu: Annotated[str, typer.Option(help="The emulator.")] = "qemu-aarch64-static",
    mmdebstrap: Annotated[str, typer.Option(help="Debian's script.")] = "mmdebstrap",
) -> None:
    """Run tests on an emulated Arm CPU, and print a table of their files."""
    begun, root, emulator = time.monotonic(), root.resolve(), shutil.which(qemu)
    if emulator is None:
        sys.exit(f"there is no {qemu}; install qemu-user-static")
    if not (root / "opt/packages/pytest").exists():
        build(root, suite, mmdebstrap)
    if program:
        sys.exit(inside(root, emulator, cpu, "sh", "-c", program))
    report = root / "tmp/report.xml"
    report.unlink(missing_ok=True)
    files = tests or SLICE
    left = max(1, seconds - int(time.monotonic() - begun))
    limit = ["timeout", "--signal=INT", "--kill-after=60", str(left)]
    options = ["-q", "-ra", "-p", "no:cacheprovider", "-o", "timeout=900"]
    pytest = ["python3", "-m", "pytest", *options, "--junitxml=/tmp/report.xml"]
    status = inside(root, emulator, cpu, *limit, *pytest, *files)
    if report.exists():
        print(table(report))
    print(f"{cpu}, {time.monotonic() - begun:.0f} s, status {status}")
    sys.exit(status)


if __name__ == "__main__":
    typer.run(main)
