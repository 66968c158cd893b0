"""What bounds the GPUs that schedules are modelled for."""

from __future__ import annotations

from dataclasses import dataclass

from skforge.compiler.target import Target


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU, as far as the model goes.

    Parameters
    ----------
    name : str
        As tables show it.
    arch : str
        What is compiled for.
    processors : int
        Multiprocessors, or compute units.
    clock : float
        Cycles a second.
    issue : float
        Instructions of warps a cycle and processor.
    l1_bytes : int
        First cache of a processor; with its shared memory where these are one.
    l2_bytes_per_cycle : float
        From the second cache to one processor.
    memory_bytes : float
        A second.
    warp : int
        Lanes of a warp.
    far, near, shared : float
        Cycles until a read's value is there: second cache, first cache, shared memory.
    counted : str
        Architecture whose machine code is looked at, for registers and instructions:
        another one where that is missing, or where chips are to be compared.
    """

    name: str
    arch: str
    processors: int
    clock: float
    issue: float
    l1_bytes: int
    l2_bytes_per_cycle: float
    memory_bytes: float
    warp: int = 32
    far: float = 260.0
    near: float = 35.0
    shared: float = 30.0
    counted: str = "sm_90"

    @property
    def is_amd(self) -> bool:
        """Whether caches are apart from shared memory, and warps may be of 64."""
        return self.arch.startswith("gfx")

    @property
    def target(self) -> Target:
        """What schedules are lowered for."""
        return Target.hip(self.arch) if self.is_amd else Target.cuda(self.arch)


H200 = Chip("H200", "sm_90", 132, 1.98e9, 4.0, 256 << 10, 21.0, 4.8e12)
A100 = Chip("A100", "sm_80", 108, 1.41e9, 4.0, 192 << 10, 24.0, 2.0e12, far=220.0)
#: A warp of 64 takes a compute unit's four vector units four cycles.
MI210 = Chip(
    "MI210",
    "gfx90a",
    104,
    1.7e9,
    1.0,
    16 << 10,
    32.0,
    1.6e12,
    warp=64,
    far=500.0,
    near=120.0,
    shared=64.0,
)
CHIPS = (H200, A100, MI210)
