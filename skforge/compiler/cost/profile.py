"""The speed of a machine: nanoseconds of each kind of work that kernels consist of."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from statistics import median

from skforge.compiler.target import Target

#: Largest ratio of two measurements of a number that agree, and of a measured number to
#: the modelled one that other work may explain: of registers and L1; of the rest.
AGREE, NOISE, FAR_NOISE = 1.25, 1.4, 5.0


def agree(one: float, other: float, most: float = AGREE) -> bool:
    return max(one, other) <= most * min(one, other)


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Nanoseconds of a CPU's work at one width of vectors."""

    mux: float  # a vector: one operand where a third is set, else another
    compare: float  # a vector compared with a number, and the answers stored as bits
    permute: float  # a vector of bytes looked up in a register
    gather: float  # a vector of 64-bit numbers loaded from places in L1
    scalar: float  # one simple instruction
    line_l1: float  # a cache line read in order, from L1
    line_l2: float
    line_l3: float  # ... or from memory
    wait_l1: float  # a load that waits for the one before, from L1
    wait_l2: float
    wait_l3: float  # ... or from memory

    def near(self, other: MachineProfile) -> bool:
        return all(map(agree, astuple(self), astuple(other)))

    def beside(self, modelled: MachineProfile) -> tuple[float, list[str]]:
        """Return the ratio to a modelled profile, and the numbers that it is not of."""
        mine, others = asdict(self), asdict(modelled)
        speed = median(mine[name] / others[name] for name in mine)
        odd = []
        for name, number in others.items():
            most = FAR_NOISE if name.endswith(("l2", "l3")) else NOISE
            if not agree(mine[name], speed * number, most):
                odd.append(name)
        return speed, odd

    def settled(self, target: Target) -> MachineProfile:
        """Return the CPU's modelled profile at this one's speed, where both agree.

        Schedules depend on the ratios of numbers. Two schedules often take nearly the
        same time; by every measured number, each process would choose another one.
        """
        speed, odd = self.beside(modelled := self.of(target))
        mine = {name: getattr(self, name) for name in odd}
        return replace(MachineProfile(*(speed * x for x in astuple(modelled))), **mine)

    @classmethod
    def of(cls, target: Target) -> MachineProfile:
        key = target.cpu, target.vector_bits
        common = ARM if target.arch == "aarch64" else GENERIC[target.vector_bits]
        return STORED.get(key) or MODELLED.get(key) or common

    @classmethod
    def is_stored(cls, target: Target) -> bool:
        return (target.cpu, target.vector_bits) in STORED

    @classmethod
    def is_modelled(cls, target: Target) -> bool:
        """Whether there is a profile of the very CPU that nobody measured."""
        return (target.cpu, target.vector_bits) in MODELLED


def _read(group: str) -> dict[tuple[str, int], MachineProfile]:
    text = Path(__file__).with_name("profiles.json").read_text("utf-8")
    return {
        (name, int(bits)): MachineProfile(*numbers)
        for name, widths in json.loads(text)[group].items()
        for bits, numbers in widths.items()
    }


#: Profiles that were measured, and those that were only modelled.
STORED, MODELLED = _read("measured"), _read("modelled")

#: For CPUs that are not stored and cannot be measured.
GENERIC = {bits: STORED["emeraldrapids", bits] for bits in (512, 256, 128)}
ARM = MODELLED["neoverse-n1", 128]
