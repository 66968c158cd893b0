"""A CuPy for tests: device memory is the host's, kernels run by the emulated machine.

It has the few calls that ``gpu/runtime/cupy.py`` uses and is as strict as CuPy is:
arrays are not converted to NumPy's by themselves, and streams and devices have to be
current where CuPy wants it. ``log`` lists what a GPU would be asked to do, in order.
"""

from __future__ import annotations

import ctypes
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.simt.source import SourceDevice

H2D, D2H = 1, 2


class OutOfMemoryError(MemoryError):
    """CuPy's."""


class FakeCupy(ModuleType):
    """The module, with knobs for what goes wrong.

    Parameters
    ----------
    n_devices : int
        GPUs there are.
    capability : str
        Of all of them.
    """

    def __init__(self, n_devices: int = 2, capability: str = "90") -> None:
        super().__init__("cupy")
        self.log: list[tuple[Any, ...]] = []
        self.free_bytes: float = float("inf")  # for a single allocation
        self.uploads = 0
        self.graphs = True
        self._n_devices = n_devices
        self._local = threading.local()
        self._capability = capability
        self._numbers = iter(range(1, 1 << 30))
        fake = self

        class Stream:
            def __init__(self, non_blocking: bool = False) -> None:
                self.ptr = next(fake._numbers)
                self.device_id = fake._device()
                self.captured: list[Any] | None = None

            def __enter__(self) -> Any:
                assert fake._device() == self.device_id
                fake._streams().append(self)
                return self

            def __exit__(self, *_: object) -> None:
                assert fake._streams().pop() is self

            def synchronize(self) -> None:
                fake.log.append(("synchronize", self.ptr))

            def begin_capture(self) -> None:
                if not fake.graphs:
                    raise RuntimeError("not supported")
                self.captured = []

            def end_capture(self) -> Any:
                steps, self.captured = self.captured, None

                def launch(stream: Any) -> None:
                    fake.log.append(("graph", stream.ptr))
                    for step in steps or ():
                        step()

                return SimpleNamespace(launch=launch)

        class Device:
            attributes = {"MaxSharedMemoryPerBlockOptin": 227 << 10}  # noqa: RUF012

            def __init__(self, number: int) -> None:
                self.id = number
                self.compute_capability = capability

            def __enter__(self) -> Any:
                fake._devices().append(self.id)
                return self

            def __exit__(self, *_: object) -> None:
                fake._devices().pop()

        class Module:
            def load(self, code: bytes) -> None:
                fake._enter_context()
                fake.log.append(("load", fake._device()))
                self.device = SourceDevice(code.decode())

            def get_function(self, name: str) -> Any:
                assert fake._local.__dict__.get("context"), "invalid device context"
                return Function(self.device, name)

        class Function:
            ptr = 7

            def __init__(self, device: SourceDevice, name: str) -> None:
                self._source, self._name = device, name

            def __call__(
                self, grid: Any, block: Any, args: Any, shared_mem: int = 0
            ) -> None:
                typed = [_argument(a) for a in args]

                def run() -> None:
                    self._source.launch(self._name, grid, block, shared_mem, typed)

                fake._do(("launch", self._name, grid), run)

        self._null = Stream()
        self._null.ptr = 0
        self.runtime_error: Exception | None = None

        def count() -> int:
            if fake.runtime_error is not None:
                raise fake.runtime_error
            return fake._n_devices

        def copy(to: int, source: int, n_bytes: int, way: int, stream: int) -> None:
            assert stream == fake._stream().ptr or stream == 0

            def run() -> None:
                ctypes.memmove(to, source, n_bytes)

            fake._do(("copy", {H2D: "in", D2H: "out"}[way], n_bytes), run)

        runtime = SimpleNamespace(
            is_hip=False,
            getDevice=self._device,
            getDeviceCount=count,
            getDeviceProperties=lambda _: {
                "warpSize": 32,
                "sharedMemPerBlock": 48 << 10,
                "multiProcessorCount": 132,
                "gcnArchName": b"gfx942:sramecc+:xnack-",
            },
            memcpyAsync=copy,
            memcpyHostToDevice=H2D,
            memcpyDeviceToHost=D2H,
            memGetInfo=self._enter_context,
            deviceSynchronize=lambda: fake.log.append(("deviceSynchronize",)),
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=Device,
            Stream=Stream,
            alloc=self._alloc,
            alloc_pinned_memory=lambda n: bytearray(n),
            get_current_stream=self._stream,
            function=SimpleNamespace(Module=Module),
            driver=SimpleNamespace(
                funcSetAttribute=lambda *args: fake.log.append(("attribute", *args))
            ),
        )
        pool = SimpleNamespace(free_all_blocks=lambda: fake.log.append(("trim",)))
        self.get_default_memory_pool = lambda: pool
        self.get_default_pinned_memory_pool = lambda: pool
        self.ndarray = Array

    # ------------------------------------------------------------ state of a thread

    def _devices(self) -> list[int]:
        if not hasattr(self._local, "devices"):
            self._local.devices = [0]
        return self._local.devices

    def _device(self) -> int:
        return self._devices()[-1]

    def _enter_context(self) -> None:
        """Do as calls of the runtime do, which those of the driver need."""
        self._local.context = True

    def _streams(self) -> list[Any]:
        if not hasattr(self._local, "streams"):
            self._local.streams = [self._null]
        return self._local.streams

    def _stream(self) -> Any:
        return self._streams()[-1]

    def _do(self, what: tuple[Any, ...], run: Any) -> None:
        """Do something on the current stream, or note it where that is captured."""
        self.log.append((*what, self._stream().ptr))
        if self._stream().captured is not None:
            self._stream().captured.append(run)
        else:
            run()

    def _alloc(self, n_bytes: int) -> Any:
        if n_bytes > self.free_bytes:
            raise OutOfMemoryError(f"out of memory: {n_bytes}")
        memory = np.full(n_bytes + 512, 0xCD, np.uint8)
        return SimpleNamespace(
            ptr=memory.ctypes.data + (-memory.ctypes.data % 512), held=memory
        )

    # ------------------------------------------------------------ arrays

    def asarray(self, given: Any) -> Array:
        """Take an array of the host, or one that speaks CUDA's interface."""
        if isinstance(given, np.ndarray):
            return Array(given.copy(), self._device())
        return Array(given.there, self._device())

    def from_dlpack(self, given: Any) -> Array:
        """Take an array of another library, on its device."""
        return Array(given.there, given.number)

    def empty(self, shape: Any, dtype: Any) -> Array:
        """Allocate."""
        made = np.empty(shape, dtype)
        if made.nbytes > self.free_bytes:
            raise OutOfMemoryError(f"out of memory: {made.nbytes}")
        return Array(made, self._device())

    def zeros(self, shape: Any, dtype: Any) -> Array:
        """Allocate zeros."""
        return Array(np.zeros(shape, dtype), self._device())

    def ascontiguousarray(self, array: Array) -> Array:
        """Copy where need be."""
        return Array(np.ascontiguousarray(array.there), array.device.id)

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)  # where, stack, exp, minimum

        def call(*args: Any, **options: Any) -> Any:
            plain = [_plain(a) for a in args]
            return Array(function(*plain, **options), self._device())

        return call


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.there if isinstance(value, Array) else value


def _argument(value: Any) -> tuple[str, Any]:
    if isinstance(value, np.uintp):
        one = (ctypes.c_uint8 * 1).from_address(int(value))
        return "pointer", np.ctypeslib.as_array(one)
    names = {"int64": "i64", "int32": "i32", "float32": "f32", "float64": "f64"}
    return names[value.dtype.name], value


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array on a device: it has to be fetched with ``get``."""

    def __init__(self, there: np.ndarray, number: int = 0) -> None:
        self.there, self.device = there, SimpleNamespace(id=number)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kw: Any) -> Any:
        if out := kw.get("out"):
            kw["out"] = tuple(_plain(one) for one in out)
        plain = map(_plain, inputs)
        given = [_flushed(x) if isinstance(x, np.ndarray) else x for x in plain]
        made = getattr(ufunc, method)(*given, **kw)
        return self if out else Array(made, self.device.id)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.there.ctypes.data, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    @property
    def data(self) -> Any:
        """Return a pointer, which keeps the array."""
        return SimpleNamespace(ptr=self.there.ctypes.data, held=self.there)

    def get(self) -> np.ndarray:
        """Return the array on the host."""
        return self.there

    def __len__(self) -> int:
        return len(self.there)

    def __getitem__(self, key: Any) -> Array:
        return Array(self.there[_plain(key)], self.device.id)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.there, name)
        if not callable(found) or name == "dtype":
            return found

        def call(*args: Any, **options: Any) -> Any:
            made = found(*args, **options)
            if name == "astype":
                made = _flushed(_flushed(self.there).astype(*args, **options))
            return Array(made, self.device.id)

        return call


def _flushed(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers as CuPy's kernels, compiled with -ftz, read and write."""
    if values.dtype != np.float32:
        return values
    tiny = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), values), values)


class DlpackArray:
    """An array of a library that speaks DLPack, on some device."""

    def __init__(self, there: np.ndarray, number: int = 0, kind: int = 2) -> None:
        self.there, self.number, self._kind = there, number, kind

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("CuPy's own business")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, self.number
