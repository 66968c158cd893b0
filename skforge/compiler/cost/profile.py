"""The speed of a machine: nanoseconds of each kind of work that kernels consist of."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, replace
from statistics import median

from skforge.compiler.target import Target

#: Largest ratio of two measurements of a number that agree, and of a measured number to
#: the modelled one that other work may explain: of registers and L1; of the rest.
AGREE, NOISE, FAR_NOISE = 1.25, 1.4, 5.0


def agree(one: float, other: float, most: float = AGREE) -> bool:
    """Return whether two measurements of a number agree."""
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
        """Return whether all numbers agree with another profile's."""
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
        """Return the stored profile of a CPU, or else of a common one like it."""
        key = target.cpu, target.vector_bits
        return STORED.get(key) or MODELLED.get(key) or GENERIC[target.vector_bits]

    @classmethod
    def is_stored(cls, target: Target) -> bool:
        """Whether there is a profile that was measured on the very CPU."""
        return (target.cpu, target.vector_bits) in STORED

    @classmethod
    def is_modelled(cls, target: Target) -> bool:
        """Whether there is a profile of the very CPU that nobody measured."""
        return (target.cpu, target.vector_bits) in MODELLED


#: An Intel Emerald Rapids server, measured by ``runtime/microkernels.py``.
_EMERALD_RAPIDS = {
    512: MachineProfile(0.27, 0.50, 0.34, 1.45, 0.08, 0.30, 0.50, 2.3, 1.7, 5.4, 45.0),
    256: MachineProfile(0.26, 0.48, 0.87, 1.18, 0.09, 0.45, 0.70, 2.4, 1.7, 5.4, 45.0),
    128: MachineProfile(0.26, 0.42, 0.40, 0.18, 0.09, 0.70, 0.95, 2.6, 1.7, 5.4, 45.0),
}

#: By LLVM's name of the CPU and the width of its vectors.
STORED = {
    (name, bits): profile
    for name in ("emeraldrapids", "sapphirerapids")
    for bits, profile in _EMERALD_RAPIDS.items()
}

#: CPUs that were not at hand: modelled by ``benchmarks/modelled.py`` with LLVM's tables
#: and round numbers for the cycles of caches, not measured.
MODELLED = {
    ("icelake-server", 512): MachineProfile(
        0.17, 0.46, 0.33, 1.34, 0.10, 0.25, 0.44, 2.00, 1.67, 4.67, 23.33
    ),
    ("icelake-server", 256): MachineProfile(
        0.17, 0.46, 0.78, 0.84, 0.10, 0.34, 0.44, 2.00, 1.67, 4.67, 23.33
    ),
    ("znver4", 512): MachineProfile(
        0.28, 0.32, 0.28, 2.25, 0.08, 0.28, 0.56, 0.70, 1.41, 3.94, 14.08
    ),
    ("znver4", 256): MachineProfile(
        0.14, 0.28, 0.63, 1.13, 0.08, 0.29, 0.56, 0.70, 1.41, 3.94, 14.08
    ),
    ("znver3", 256): MachineProfile(
        0.18, 0.31, 0.55, 1.25, 0.09, 0.32, 0.62, 0.78, 1.56, 3.75, 14.38
    ),
    ("neoverse-n1", 128): MachineProfile(
        0.20, 0.95, 0.40, 0.30, 0.15, 0.81, 0.81, 2.00, 1.60, 4.40, 32.00
    ),
    ("neoverse-v2", 128): MachineProfile(
        0.09, 0.46, 0.18, 0.13, 0.07, 0.48, 0.71, 1.79, 1.43, 3.57, 28.57
    ),
}

#: For CPUs that are not stored and cannot be measured.
GENERIC = _EMERALD_RAPIDS
