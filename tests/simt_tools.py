"""Runs LIR functions as the emitted GPU text in the CPU's SIMT machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from skforge.compiler.ir.lir.nodes import Function
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError, TargetError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.codegen.host_plan import POINTER, HostPlan
from skforge.gpu.codegen.writer import PRELUDE
from tests.simt import EMULATED_SOURCE
from tests.simt.source import SourceDevice, aligned_bytes
from tests.simt_server import Order, SanitizedDevice, Sanitizer, order_number

TARGET = Target.cuda("sm_90", kind=EMULATED_SOURCE)
ORDERS: tuple[Order, ...] = ("forward", "reverse", 1)
MODES: tuple[Sanitizer | None, ...] = (None, "address", "thread")

_PROBE = "SKF_KERNEL(32) probe(float* out) { SKF_BARRIER(); out[SKF_TID_X] = 1.0f; }\n"


@lru_cache(maxsize=3)
def why_missing(sanitize: Sanitizer | None) -> str:
    """Return why there is no compiler or sanitizer here; empty if there is one."""
    try:
        SourceDevice(_PROBE)
    except TargetError as error:
        if "not on the PATH" in str(error):
            return str(error)
        raise
    if sanitize is None:
        return ""
    out = np.zeros(32, np.float32)
    try:
        with SanitizedDevice(_PROBE, sanitize) as device:
            device.launch("probe", (1, 1, 1), (32, 1, 1), 0, [("pointer", out)])
    except (TargetError, CompilerError) as error:
        return f"The {sanitize} sanitizer does not work here: {error}"
    return ""


def device_of(source: str, sanitize: Sanitizer | None) -> SourceDevice:
    """Return a device for a text, under a sanitizer if one is given."""
    return SanitizedDevice(source, sanitize) if sanitize else SourceDevice(source)


def close(device: SourceDevice) -> None:
    """End the process of a device that has one."""
    if isinstance(device, SanitizedDevice):
        device.close()


def need(sanitize: Sanitizer | None) -> None:
    """Skip the test where kernels cannot be built or run so."""
    if reason := why_missing(sanitize):
        pytest.skip(reason)


def scratch_of(n_bytes: int) -> np.ndarray[Any, Any]:
    """Return scratch filled with poison bytes."""
    memory = aligned_bytes(n_bytes)
    memory.fill(0xCD)
    return memory


def run_plan(plan: HostPlan, device: SourceDevice, args: Mapping[str, Any]) -> None:
    """Run what a plan does; arrays are pointers."""
    named = {k: k if isinstance(v, np.ndarray) else v for k, v in args.items()}
    run = plan.run(named)
    memory = {name: scratch_of(size) for name, size in run.scratch.items()}
    memory |= args
    for call in run.calls:
        given = [(t, memory[v] if t == POINTER else v) for t, v in call.args]
        device.launch(call.kernel, call.grid, call.block, call.shared_bytes, given)


class Batch:
    """Functions whose kernels make one text, so that g++ runs once for all of them."""

    def __init__(
        self, functions: Sequence[Function], sanitize: Sanitizer | None = None
    ) -> None:
        need(sanitize)
        self.plans = [
            emit_gpu(replace(function, name=f"f{number}"), TARGET)
            for number, function in enumerate(functions)
        ]
        kernels = [plan.source.removeprefix(PRELUDE) for plan in self.plans]
        self.device = device_of("\n".join([PRELUDE, *kernels]), sanitize)

    def run(
        self, number: int, args: Mapping[str, Any], order: Order = "forward"
    ) -> dict[str, Any]:
        """Return the arguments after a function has run on copies of them."""
        copies = {k: np.copy(v) if np.ndim(v) else v for k, v in args.items()}
        self.device.order = order_number(order)
        run_plan(self.plans[number], self.device, copies)
        return copies

    def __enter__(self) -> Batch:
        """Return the batch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the device."""
        close(self.device)
