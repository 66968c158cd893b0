"""The speed of a machine: nanoseconds of each kind of work that kernels consist of."""

from __future__ import annotations

from dataclasses import dataclass

from skforge.compiler.target import Target


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Nanoseconds of a CPU's work at one width of vectors.

    Parameters
    ----------
    mux : float
        A vector that is one operand where a third is set, and another elsewhere.
    compare : float
        A vector of numbers compared with one number, and the answers stored as bits.
    permute : float
        A vector of bytes looked up in a register.
    gather : float
        A vector of 64-bit numbers loaded from places in L1.
    scalar : float
        One simple instruction.
    line_l1, line_l2, line_l3 : float
        A cache line read in order from that level.
    wait_l1, wait_l2, wait_l3 : float
        A load that waits for the one before.
    """

    mux: float
    compare: float
    permute: float
    gather: float
    scalar: float
    line_l1: float
    line_l2: float
    line_l3: float
    wait_l1: float
    wait_l2: float
    wait_l3: float

    @classmethod
    def of(cls, target: Target) -> MachineProfile:
        """Return the stored profile of a CPU, or else of a common one like it."""
        found = STORED.get((target.cpu, target.vector_bits))
        return GENERIC[target.vector_bits] if found is None else found

    @classmethod
    def is_stored(cls, target: Target) -> bool:
        """Whether there is a profile of the very CPU."""
        return (target.cpu, target.vector_bits) in STORED


#: An Intel Emerald Rapids server, measured by ``runtime/microkernels.py``.
_EMERALD_RAPIDS = {
    512: MachineProfile(0.23, 0.48, 0.33, 1.45, 0.09, 0.34, 0.55, 2.2, 1.7, 5.6, 20.0),
    256: MachineProfile(0.50, 0.52, 0.85, 1.20, 0.09, 0.50, 0.70, 2.4, 1.7, 5.6, 20.0),
    128: MachineProfile(0.25, 0.38, 0.42, 0.22, 0.09, 0.70, 1.10, 2.5, 1.7, 5.6, 20.0),
}

#: By LLVM's name of the CPU and the width of its vectors.
STORED = {
    (name, bits): profile
    for name in ("emeraldrapids", "sapphirerapids")
    for bits, profile in _EMERALD_RAPIDS.items()
}

#: For CPUs that are not stored and cannot be measured.
GENERIC = _EMERALD_RAPIDS
