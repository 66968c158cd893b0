"""Model the profiles of CPUs that are not at hand, from LLVM's tables of them.

    python benchmarks/modelled.py --mca llvm-mca-19 --output benchmarks/results

LLVM compiles the kernels that measure a machine for each CPU, and ``llvm-mca`` (LLVM 19
or later; ``apt install llvm-19``) simulates their inner loops with LLVM's own scheduler
tables. Caches beyond L1 are named constants. Nothing is measured, except what stands
beside the model to judge it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from assembly import describe, mnemonics
from cost_model_family import get
from harness import of_size, table

from skforge.compiler.cost.estimate import plan_of
from skforge.compiler.cost.profile import STORED, MachineProfile
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import emit_assembly
from skforge.engine.machine import (
    WORK,
    functions,
    measure,
    without_kernels,
)
from skforge.schedule.families import bitsliced_schedule, lanes_schedule

#: Turns that are simulated, enough that the first ones do not count.
TURNS = 400

#: Cycles of a gather for each number it loads on AMD, where it is many small
#: operations: uops.info measures 8 for 8 numbers on Zen 3. LLVM's tables have 0.1.
AMD_GATHER = 1.0

#: Cache lines that a turn of the kernel ``stream`` reads.
STREAMED = 2


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU that LLVM has tables for, and facts that these do not hold."""

    name: str  # LLVM's
    chip: str  # with this CPU
    ghz: float  # nominal, with all cores at work
    features: str  # of LLVM, beyond those of x86-64-v3; empty on Arm
    widths: tuple[int, ...]  # bits of vectors
    loaded: int  # bytes that L1 delivers in a cycle
    lines: tuple[float, float]  # cycles to read a cache line in order from L2 and L3
    waits: tuple[float, float]  # cycles of a load's latency
    sizes: tuple[int, int, int]  # KiB of L1, L2 and L3
    source: str  # of these


_V4 = ",".join(
    f"+avx512{name}" for name in ("f", "bw", "cd", "dq", "vl", "vbmi", "vbmi2")
)

#: L3 differs between chips and with load: its cycles are rounded, and the least sure.
CPUS = (
    Cpu("emeraldrapids", "this kind of server", 2.9, _V4, (512, 256, 128), 128,
        (1.33, 6.5), (16, 70), (48, 2048, 327680),
        "round numbers, as often given; L3 as measured"),
    Cpu("icelake-server", "Xeon 8380", 3.0, _V4, (512, 256), 128,
        (1.33, 6.0), (14, 70), (48, 1280, 61440),
        "round numbers, as often given"),
    Cpu("znver4", "EPYC 9654", 3.55, _V4, (512, 256), 64,
        (2.0, 2.5), (14, 50), (32, 1024, 32768),
        "round numbers, as often given"),
    Cpu("znver3", "EPYC 7763", 3.2, "", (256,), 64,
        (2.0, 2.5), (12, 46), (32, 512, 32768),
        "round numbers, as often given"),
    Cpu("neoverse-n1", "Graviton 2", 2.5, "", (128,), 32,
        (2.0, 5.0), (11, 80), (64, 1024, 32768),
        "round numbers, as often given"),
    Cpu("neoverse-v2", "Graviton 4", 2.8, "", (128,), 48,
        (2.0, 5.0), (10, 80), (64, 2048, 36864),
        "round numbers, as often given"),
)  # fmt: skip

#: Forests whose default schedules are compared: small, usual, wide, deep, categories.
FORESTS = (
    "xgboost-100x6x28",
    "xgboost-100x8x28",
    "xgboost-1000x3x12",
    "xgboost-100x7x600",
    "lightgbm-100x31x28",
    "lightgbm-sets-100x31x28",
    "ExtraTreesRegressor-100x13x24",
    "RandomForestClassifier-50xNonex30",
)
SIZES = (1, 8, 64, 512, 4096)

#: The forest whose kernels' loops are modelled, and instructions of a loop to be shown.
KERNELS_OF, LONG = "xgboost-100x8x28", 50

Numbers: TypeAlias = "dict[str, float]"

_LABEL = re.compile(r"^(\.L\w+):")
_INSTRUCTION = re.compile(r"^\s+[a-z]")
_JUMP = re.compile(r"^\s+(j|b\.|b\s|cbn?z|tbn?z)")


def target_of(cpu: Cpu, bits: int) -> Target:
    common = Target.aarch64() if bits == 128 and not _is_x86(cpu) else Target.x86_64()
    features = ",".join(filter(None, (common.features, cpu.features)))
    l1, l2, l3 = (size << 10 for size in cpu.sizes)
    return Target(
        "cpu", common.triple, cpu.name, features, bits,
        l1_bytes=l1, l2_bytes=l2, l3_bytes=l3,
    )  # fmt: skip


def _is_x86(cpu: Cpu) -> bool:
    return not cpu.name.startswith("neoverse")


def inner_loops(assembly: str) -> list[list[str]]:
    """Return the instructions of loops without branches: from a label to a jump to it.

    >>> inner_loops(".LBB0_1:\\n\\tincq\\t%rax\\n\\tjl\\t.LBB0_1\\n\\tretq\\n")
    [['incq\\t%rax', 'jl\\t.LBB0_1']]
    """
    found: list[list[str]] = []
    label, body = None, list[str]()
    for line in assembly.splitlines():
        if start := _LABEL.match(line):
            label, body = start[1], []
        elif _INSTRUCTION.match(line):
            body.append(line.strip())
            if _JUMP.match(line):
                if line.split()[-1] == label:
                    found.append(body)
                label = None
    return found


def loaded_bytes(instruction: str) -> int:
    """Return how much an instruction that loads brings, by its widest register.

    >>> loaded_bytes("vmovdqu64\\t64(%rcx), %zmm1"), loaded_bytes("ldp q0, q1, [x8]")
    (64, 32)
    """
    if instruction.startswith("ldp"):
        return 2 * loaded_bytes(instruction.replace("ldp", "ldr", 1))
    for bytes_, register in ((64, r"%zmm"), (32, r"%ymm"), (16, r"%xmm|\bq\d|\.16b")):
        if re.search(register, instruction):
            return bytes_
    return 8


def cycles(mca: str, cpu: Cpu, triple: str, loop: list[str]) -> float:
    """Return the modelled cycles of a turn: LLVM's, or the loads' if these take longer.

    LLVM's tables of Zen let L1 deliver twice what it does.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write("\n".join(loop) + "\n")
        file.flush()
        ran = subprocess.run(
            [mca, f"-mtriple={triple}", f"-mcpu={cpu.name}", f"-iterations={TURNS}",
             "--json", file.name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if ran.returncode:
        raise typer.BadParameter(f"{mca} fails for {cpu.name}: {ran.stderr.strip()}")
    (region,) = json.loads(ran.stdout)["CodeRegions"]
    facts = region["InstructionInfoView"]["InstructionList"]
    loads = [line for line, fact in zip(loop, facts, strict=True) if fact["mayLoad"]]
    gathers = [line for line in loads if "gather" in line]
    bound = sum(map(loaded_bytes, loads)) / cpu.loaded
    if cpu.name.startswith("znver"):
        numbers = sum(loaded_bytes(line) / 8 for line in gathers)
        bound = max(bound, AMD_GATHER * numbers)
    return max(bound, float(region["SummaryView"]["TotalCycles"]) / TURNS)


def modelled_cycles(mca: str, cpu: Cpu, bits: int) -> Numbers:
    target = target_of(cpu, bits)
    turns = {}
    for name, made in functions(target).items():
        (loop,) = inner_loops(emit_assembly(made, target))
        turns[name] = cycles(mca, cpu, target.triple, loop)
    found = {name: turns[name] / count for name, count in WORK.items() if name in turns}
    found = without_kernels(found, target)
    found["line_l1"], found["wait_l1"] = turns["stream"] / STREAMED, turns["chase"]
    found |= {"line_l2": max(cpu.lines[0], found["line_l1"]), "line_l3": cpu.lines[1]}
    found |= {"wait_l2": cpu.waits[0], "wait_l3": cpu.waits[1]}
    return {name: found[name] for name in MachineProfile.__dataclass_fields__}


def profile_of(cpu: Cpu, found: Numbers) -> MachineProfile:
    """Return cycles as the nanoseconds of a profile, as it is stored."""
    return MachineProfile(**{k: round(v / cpu.ghz, 2) for k, v in found.items()})


def choices(target: Target, profile: MachineProfile) -> Iterator[list[str]]:
    """Yield a default schedule's kind and rows of a block, by forest and size."""
    for name in FORESTS:
        chosen = default_schedules(get(name).forest, target, "exact", profile)
        row = []
        for size in SIZES:
            plan = plan_of(of_size(chosen, size))
            assert plan is not None
            row.append(f"{plan.kind} {plan.block}" if plan.block else plan.kind)
        yield row


def main(
    output: Annotated[Path, typer.Option()] = Path("benchmarks/results"),
    mca: Annotated[str, typer.Option(help="The program llvm-mca.")] = "llvm-mca",
) -> None:
    """Write modelled.md and modelled.json, and print the profiles to store."""
    version = subprocess.run([mca, "--version"], capture_output=True, text=True)
    (llvm,) = re.findall(r"LLVM version (\S+)", version.stdout)
    found = {
        (cpu.name, bits): modelled_cycles(mca, cpu, bits)
        for cpu in CPUS
        for bits in cpu.widths
    }
    of_name = {cpu.name: cpu for cpu in CPUS}
    profiles = {key: profile_of(of_name[key[0]], one) for key, one in found.items()}
    for (name, bits), profile in profiles.items():
        typer.echo(f"{name}: {json.dumps({bits: [*asdict(profile).values()]})}")
    judged, chosen = checked(profiles), defaults()
    parts = [
        INTRODUCTION.format(llvm=llvm, cpus=_lines(_FACTS, _facts())),
        "## The model beside measurements\n\n" + CHECK + "\n\n" + judged,
        "## Cycles\n\n" + _lines(_WORK, _rows(found)),
        "## Nanoseconds\n\n"
        + _lines(_WORK, _rows({k: asdict(p) for k, p in profiles.items()})),
        "## Default schedules\n\n" + DEFAULTS + "\n\n" + chosen,
    ]
    loops = _lines(("kernel", "CPU", "bits", "loop", "cycles"), real_kernels(mca))
    parts.append("## Loops of two kernels\n\n" + LOOPS + "\n\n" + loops)
    output.mkdir(parents=True, exist_ok=True)
    (output / "modelled.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    document = {
        "llvm": llvm,
        "cpus": [asdict(cpu) for cpu in CPUS],
        "cycles": {f"{name} {bits}": one for (name, bits), one in found.items()},
        "ns": {f"{name} {bits}": asdict(one) for (name, bits), one in profiles.items()},
    }
    text = json.dumps(document, indent=1)
    (output / "modelled.json").write_text(text + "\n", encoding="utf-8")


INTRODUCTION = """\
# CPUs that were not at hand

**Nothing here is measured, except the columns that say so.** skforge compiles its own
small kernels for each CPU. LLVM {llvm}'s simulator `llvm-mca` runs them with LLVM's
scheduler tables: ports, latencies, micro-operations. Two bounds correct these tables:
L1 delivers no more than its bytes a cycle, and a gather on AMD takes one cycle a
number. Clocks that change with load, mispredicted branches and the front end are not
modelled. The cycles of lines and loads from L2 and L3 are rounded constants. Those of
L3 are the least certain, because chips of one CPU differ in them. This LLVM has no
table of Zen 5.

{cpus}"""

CHECK = """\
Times in ns on Emerald Rapids. The stored profile was measured before. `again` is the
least of three measurements of this run, if it was on that CPU, with the instructions of
the model (AVX-512's also for narrow vectors). The last column is modelled divided by
`again`. LLVM's table keeps the additions of `line_l1` three cycles apart, and
`line_l2` cannot be less than that. `wait_l3` includes other work of the machine on its
last cache."""

DEFAULTS = """\
The kind of schedule, and the rows of a block, that the stored profiles choose for each
number of rows. Bold: Emerald Rapids takes another one with vectors of the same width. A
CPU without a line takes the same schedules as Emerald Rapids."""

LOOPS = f"""\
{KERNELS_OF}: loops without branches that have at least {LONG} instructions, with their
most frequent instructions and the modelled cycles of one turn, all data in L1. A turn
with vectors of 128 bits does a part of the work of one with 512. The bit-sliced
kernel's loop over trees has branches and is not listed."""

_FACTS = ("CPU", "chip", "GHz", "L1 bytes a cycle", "cycles of a line, L2, L3",
          "cycles of a load, L2, L3", "from")  # fmt: skip
_WORK = ("CPU", "bits", *MachineProfile.__dataclass_fields__)


def _facts() -> Iterator[list[str]]:
    for cpu in CPUS:
        lines, waits = (
            ", ".join(f"{v:g}" for v in two) for two in (cpu.lines, cpu.waits)
        )
        yield [cpu.name, cpu.chip, f"{cpu.ghz:g}", str(cpu.loaded), lines, waits,
               cpu.source]  # fmt: skip


def _rows(found: dict[tuple[str, int], Numbers]) -> Iterator[list[str]]:
    for (name, bits), one in found.items():
        yield [name, str(bits), *(f"{value:.2f}" for value in one.values())]


def checked(profiles: dict[tuple[str, int], MachineProfile]) -> str:
    rows = []
    for bits in (512, 256, 128):
        key = (CPUS[0].name, bits)
        stored, model = asdict(STORED[key]), asdict(profiles[key])
        here = Target.host().cpu == CPUS[0].name
        runs = [measure(target_of(CPUS[0], bits)) for _ in range(3 * here)] or [stored]
        again = {name: min(run[name] for run in runs) for name in stored}
        for name, value in model.items():
            ratio = f"{value / again[name]:.2f}"
            cells = (stored[name], again[name], value)
            rows.append([str(bits), name, *(f"{v:.2f}" for v in cells), ratio])
    return _lines(("bits", "work", "stored", "again", "modelled", "ratio"), rows)


def defaults() -> str:
    """Return the table of default schedules, of CPUs like Emerald Rapids only its."""
    made: dict[tuple[str, int], list[list[str]]] = {}
    for cpu in CPUS:
        for bits in cpu.widths:
            target = target_of(cpu, bits)
            made[cpu.name, bits] = list(choices(target, MachineProfile.of(target)))
    rows = []
    for at, forest in enumerate(FORESTS):
        for key, by_forest in made.items():
            usual = made[CPUS[0].name, key[1]][at]
            marked = [
                one if one == other else f"**{one}**"
                for one, other in zip(by_forest[at], usual, strict=True)
            ]
            if key[0] == CPUS[0].name or marked != usual:
                rows.append([forest, *map(str, key), *marked])
    return _lines(("forest", "CPU", "bits", *map(str, SIZES)), rows)


def real_kernels(mca: str) -> Iterator[list[str]]:
    """Yield the loops of two kernels: instructions, and cycles of a turn."""
    forest = get(KERNELS_OF).forest
    for cpu in CPUS:
        target = target_of(cpu, cpu.widths[0])
        schedules = {
            "bit-sliced": bitsliced_schedule(target.vector_bits),
            "lanes": lanes_schedule(),
        }
        for name, schedule in schedules.items():
            hir = build_hir(forest, schedule, "exact", kind="cpu")
            text = emit_assembly(lower(hir, target).kernel.function, target)
            for loop in inner_loops(text):
                if len(loop) >= LONG:
                    turn = cycles(mca, cpu, target.triple, loop)
                    held = describe(mnemonics("\n".join(f"\t{one}" for one in loop)))
                    yield [name, cpu.name, str(target.vector_bits), held, f"{turn:.0f}"]


def _lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(table(heads, rows, len(heads)))


if __name__ == "__main__":
    typer.run(main)
