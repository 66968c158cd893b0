"""A GPU through CuPy: memory, streams, launches and arrays, on CUDA and ROCm.

CuPy is imported on the first use of a GPU, because some of its wheels cannot be
imported without a driver. Only ``upload``, once per model, and the staging of rows from
the host wait for the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.ir.lir.nodes import Scalar
from skforge.compiler.ir.lir.types import dtype_of, scalar_of
from skforge.compiler.target import Target
from skforge.config import launch_graphs
from skforge.engine.arrays import USED_BY, is_forked
from skforge.exceptions import InvalidInputError, TargetError
from skforge.gpu.codegen.host_plan import POINTER, Argument, KernelCall
from skforge.gpu.codegen.writer import PRELUDE
from skforge.gpu.runtime.compilers import CompilerKind, code_of, compiler_version
from skforge.gpu.runtime.device import GpuDevice, LaunchFunction, Staging

_INSTALL: dict[CompilerKind, str] = {
    "cuda": (
        "pip install cupy-cuda13x nvidia-cuda-nvrtc (or cupy-cuda12x "
        "nvidia-cuda-nvrtc-cu12 for older drivers)"
    ),
    "hip": "pip install cupy-rocm-7-0",
}
#: Shared memory, in bytes, that a kernel may use without an attribute.
_SHARED_BYTES = 48 << 10
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

# CuPy compiles its own kernels so that they take denormal numbers for zeros, which are
# other numbers to a split, and to ``missing_value``.
_CAST = """
SKF_KERNEL(256) cast_rows(
    const {given}* rows, {wanted}* to, i64 n_rows, i64 stride, i32 width, i32 of_block,
    {wanted} missing, {wanted} nan)
{{
  const i64 first = (i64)SKF_BID_X * of_block, left = n_rows - first;
  const u32 size = (u32)width * (u32)(left < of_block ? left : of_block);
  for (u32 at = SKF_TID_X; at < size; at += 256) {{
    const {wanted} value =
        ({wanted})rows[(first + at / (u32)width) * stride + at % (u32)width];
    to[first * width + at] = value == missing ? nan : value;
  }}
}}
"""
# CuPy's own division takes twice as long to start.
_DIVIDE = """
SKF_KERNEL(256) divide({dtype}* values, i64 count, {dtype} divisor) {{
  const i64 at = (i64)SKF_BID_X * 256 + SKF_TID_X;
  if (at < count) values[at] = values[at] / divisor;
}}
"""


# ---------------------------------------------------------------- which device


def current(kind: CompilerKind | None = None) -> CupyDevice:
    device = _device(int(_cupy(kind).cuda.runtime.getDevice()))
    if kind is not None and device.kind != kind:
        raise TargetError(
            f"target {kind!r} was asked for, but the installed CuPy is for "
            f"{device.kind!r}; {_INSTALL[kind]} in a separate environment, or use "
            f"target={device.kind!r}."
        )
    return device


def find_device() -> CupyDevice | None:
    try:
        return current()
    except TargetError:
        return None


def as_cupy(X: Any, kind: CompilerKind) -> tuple[CupyDevice, Any]:
    """Return an array that shares memory; the current stream waits for its writer."""
    cupy = _cupy(kind)
    if not isinstance(X, cupy.ndarray):
        try:
            X = cupy.from_dlpack(X) if hasattr(X, "__dlpack__") else cupy.asarray(X)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise InvalidInputError(
                f"CuPy cannot take rows of type {type(X).__module__}."
                f"{type(X).__name__}: {error}"
            ) from error
    return _device(int(X.device.id)), X


def forget() -> None:
    _checked.cache_clear()
    _device.cache_clear()
    USED_BY.clear()


def rows_on_host(X: Any, indices: Array) -> Array:
    _, array = as_cupy(X, "cuda")
    with _device(int(array.device.id)).current():
        return array[_cupy(None).asarray(indices)].get()


def _cupy(kind: CompilerKind | None) -> Any:
    if is_forked():
        raise TargetError(
            "GPUs cannot be used in a process that was forked from a process that "
            "used them; start processes with 'spawn', as joblib's 'loky' does."
        )
    return _checked(kind or "cuda")


@lru_cache(maxsize=2)
def _checked(kind: CompilerKind) -> Any:
    try:
        import cupy
    except (ImportError, OSError) as error:  # such as ROCm's wheel without ROCm
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            raise TargetError(
                f"target {kind!r} needs CuPy, which is not installed: "
                f"{_INSTALL[kind]}; or use target='cpu'."
            ) from error
        why = str(error).strip().rstrip(".")
        raise TargetError(
            f"CuPy is installed but cannot be imported: {why}. Install the CUDA or "
            "ROCm libraries that it was built for, or use target='cpu'."
        ) from error
    try:
        if cupy.cuda.runtime.getDeviceCount() > 0:
            USED_BY[:] = [os.getpid()]
            return cupy
        reason = "it reports 0 devices"
    except Exception as error:  # noqa: BLE001 - CuPy's own, and libraries it misses
        reason = str(error)
    raise TargetError(
        f"CuPy finds no GPU, or no driver for it: {reason.rstrip('.')}. Use "
        "target='cpu', or 'auto', which takes a GPU where there is one."
    )


@cache
def _device(number: int) -> CupyDevice:
    return CupyDevice(_checked("cuda"), number)


# ---------------------------------------------------------------- a device


class CupyDevice(GpuDevice):
    """One GPU, by CUDA's device number."""

    def __init__(self, cupy: Any, number: int) -> None:
        self.xp = cupy
        self._runtime = cupy.cuda.runtime
        self.key: Hashable = number
        self.number = number
        self.kind: CompilerKind = "hip" if self._runtime.is_hip else "cuda"
        self._device = cupy.cuda.Device(number)
        self.name = f"GPU {number}"
        self.memory_errors = (cupy.cuda.memory.OutOfMemoryError,)
        super().__init__()
        self.arch = self._arch()

    def _arch(self) -> str:
        if self.kind == "cuda":
            return f"sm_{self._device.compute_capability}"
        name = self._runtime.getDeviceProperties(self.number)["gcnArchName"]
        text = name.decode() if isinstance(name, bytes) else str(name)
        return text.split(":")[0]

    def target(self) -> Target:
        facts = self._runtime.getDeviceProperties(self.number)
        most = self._device.attributes.get("MaxSharedMemoryPerBlockOptin", 0)
        shared = int(most or facts["sharedMemPerBlock"])
        like = Target.cuda() if self.kind == "cuda" else Target.hip()
        return replace(
            like,
            cpu=self.arch,
            vector_bits=32 * int(facts["warpSize"]),
            shared_bytes=shared,
            n_cores=int(facts["multiProcessorCount"]),
        )

    def current(self, stream: Any = None) -> AbstractContextManager[Any]:
        return self.xp.cuda.Device(self.number) if stream is None else stream

    def load(self, source: str) -> Callable[[KernelCall], LaunchFunction]:
        code = code_of(source, self.arch, self.kind)
        module = self.xp.cuda.function.Module()
        try:
            module.load(code)
        except Exception as error:
            compiler = "NVRTC" if self.kind == "cuda" else "hiprtc"
            raise TargetError(
                f"{self.name} ({self.arch}) cannot load code compiled by {compiler} "
                f"{compiler_version(self.kind)}: {error}. The driver may be older "
                "than the compiler; update the driver, or install a compiler of the "
                "driver's version."
            ) from error
        return _Kernels(self.xp, module, self.kind).bind

    def cast(self, rows: Any, to: Any, missing: float) -> None:
        """Write floats, of contiguous rows, in another dtype; NaN for ``missing``."""
        given, wanted = (scalar_of(x.dtype).name for x in (rows, to))
        (n, width), stride = rows.shape, rows.strides[0] // rows.itemsize
        of_block = max(1, 1024 // width, -(-n >> 22))  # few enough for AMD
        args = (
            *(Argument(POINTER, name) for name in ("rows", "to")),
            *(Argument("i64", number) for number in (n, stride)),
            *(Argument("i32", number) for number in (width, of_block)),
            *(Argument(wanted, value) for value in (missing, np.nan)),
        )
        source = _CAST.format(given=given, wanted=wanted)
        call = KernelCall("cast_rows", (-(-n // of_block), 1, 1), (256, 1, 1), 0, args)
        places = {"rows": self.pointer(rows.data), "to": self.pointer(to.data)}
        self._own(source)(call)(places)

    def divide(self, values: Any, divisor: float) -> None:
        """Divide floats, of a contiguous array that is not empty, in place."""
        start = self._division(scalar_of(values.dtype).name, values.size, divisor)
        start({"values": self.pointer(values.data)})

    @lru_cache(maxsize=256)  # noqa: B019 - devices are never freed
    def _division(self, dtype: str, count: int, divisor: float) -> LaunchFunction:
        args = (
            Argument(POINTER, "values"),
            Argument("i64", count),
            Argument(dtype, divisor),
        )
        call = KernelCall("divide", (-(-count // 256), 1, 1), (256, 1, 1), 0, args)
        return self._own(_DIVIDE.format(dtype=dtype))(call)

    @cache  # noqa: B019
    def _own(self, source: str) -> Callable[[KernelCall], LaunchFunction]:
        return self.load(PRELUDE + source)

    def pointer(self, memory: Any) -> Any:
        return np.uintp(memory.ptr)

    def upload(self, data: Array) -> Any:
        """Return a copy in device memory, complete for the streams of any thread."""
        data = np.ascontiguousarray(data)
        memory = self.allocate(data.nbytes)
        if data.nbytes:
            # The memory may still be in use on the stream it was allocated for.
            stream = self.xp.cuda.get_current_stream()
            way = self._runtime.memcpyHostToDevice
            self._copy(memory.ptr, data.ctypes.data, data.nbytes, way, stream)
            stream.synchronize()
        return memory

    def allocate(self, n_bytes: int) -> Any:
        return self.xp.cuda.alloc(max(1, n_bytes))

    def new_staging(self, rows_bytes: int, result_bytes: int) -> Staging:
        cupy = self.xp
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            memory = [cupy.cuda.alloc(size) for size in (rows_bytes, result_bytes)]
        host_rows, host_result = _pinned(cupy, rows_bytes), _pinned(cupy, result_bytes)
        return Staging(stream, host_rows, host_result, *memory)

    def send(self, staging: Staging, n_bytes: int) -> None:
        way = self._runtime.memcpyHostToDevice
        source = staging.host_rows.ctypes.data
        self._copy(staging.rows.ptr, source, n_bytes, way, staging.stream)

    def fetch(self, staging: Staging, n_bytes: int) -> None:
        way = self._runtime.memcpyDeviceToHost
        to = staging.host_result.ctypes.data
        self._copy(to, staging.result.ptr, n_bytes, way, staging.stream)

    def _copy(self, to: int, source: int, n_bytes: int, way: int, stream: Any) -> None:
        if n_bytes:
            self._runtime.memcpyAsync(to, source, n_bytes, way, stream.ptr)

    def record(self, call: Callable[[], None], stream: Any) -> Callable[[], None]:
        """Return a CUDA graph of the call, or the call if graphs are unavailable."""
        if not _captures(self.xp):
            return call
        call()  # first-use work must not be part of the graph
        stream.synchronize()
        try:
            stream.begin_capture()
            try:
                call()
            finally:
                graph = stream.end_capture()
        except Exception:  # noqa: BLE001 - whatever a driver says: launches work too
            return call

        def launch(keep_alive: Callable[[], None] = call) -> None:
            graph.launch(stream)

        return launch

    def wait(self, stream: Any = None) -> None:
        if stream is not None:
            stream.synchronize()
            return
        with self.current():
            self._runtime.deviceSynchronize()

    def trim(self) -> None:
        self.staging.clear()
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()


class _Kernels:
    def __init__(self, cupy: Any, module: Any, kind: CompilerKind) -> None:
        self._cupy, self._module, self._kind = cupy, module, kind
        self._functions: dict[tuple[str, int], Any] = {}

    def bind(self, call: KernelCall) -> LaunchFunction:
        function = self._function(call.kernel, call.shared_bytes)
        grid, block, shared_bytes = call.grid, call.block, call.shared_bytes
        values: list[Any] = []
        names: list[tuple[int, str]] = []
        for position, (type_, value) in enumerate(call.args):
            if type_ == POINTER:
                names.append((position, value))
                values.append(None)
            else:
                values.append(dtype_of(Scalar(type_)).type(value))  # type: ignore[arg-type]

        def start(pointers: Mapping[str, Any]) -> None:
            arguments = values.copy()
            for position, name in names:
                arguments[position] = pointers[name]
            function(grid, block, tuple(arguments), shared_mem=shared_bytes)

        return start

    def _function(self, kernel: str, shared_bytes: int) -> Any:
        function = self._functions.get((kernel, shared_bytes))
        if function is None:
            # If another thread loaded it, this thread has no device context yet.
            self._cupy.cuda.runtime.memGetInfo()
            function = self._module.get_function(kernel)
            if shared_bytes > _SHARED_BYTES and self._kind == "cuda":
                self._cupy.cuda.driver.funcSetAttribute(
                    function.ptr, _MAX_DYNAMIC_SHARED, shared_bytes
                )
            self._functions[kernel, shared_bytes] = function
        return function


def _captures(cupy: Any) -> bool:
    """Tell whether calls become graphs: not on ROCm, nor if disabled."""
    if cupy.cuda.runtime.is_hip or not launch_graphs():
        return False
    return hasattr(cupy.cuda.Stream, "begin_capture")


def _pinned(cupy: Any, n_bytes: int) -> Array:
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(n_bytes), np.uint8, n_bytes)
