"""Systems in processes of their own, driven over pipes; see worker.py.

Each system has one process for the whole run. Peers cannot disturb each other's thread
pools, may live in other environments, and one that hangs or crashes ends alone.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from environments import python_of
from models import Model
from numpy.typing import NDArray

WORKER = Path(__file__).with_name("worker.py")


class SystemFailedError(Exception):
    """A system cannot do what was asked; the message is fit for the table."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A system of the table: its name, its loader, its environment."""

    name: str
    module: str
    function: str
    environment: str | None = None


#: In the order of the table. A tuned skforge is one more line here.
SYSTEMS = (
    Entry("skforge", "systems", "skforge"),
    Entry("xgboost", "systems", "xgboost"),
    Entry("xgboost wrapper", "systems", "xgboost_wrapper"),
    Entry("lightgbm", "systems", "lightgbm"),
    Entry("lightgbm wrapper", "systems", "lightgbm_wrapper"),
    Entry("sklearn", "systems", "sklearn"),
    Entry("treelite", "peers", "treelite"),
    Entry("nvforest", "peers", "nvforest", "nvforest"),
    Entry("tl2cgen", "peers", "tl2cgen"),
    Entry("lleaves", "peers", "lleaves", "lleaves"),
    Entry("lignum", "peers", "lignum"),
    Entry("lignum compiled", "peers", "lignum_compiled"),
    Entry("onnxruntime", "peers", "onnxruntime"),
    Entry("daal4py", "peers", "daal4py"),
    Entry("hummingbird", "peers", "hummingbird", "hummingbird"),
)
OURS = ("skforge", "skforge AVX2", "skforge tuned")


class Remote:
    """A system in its own process, started when first asked.

    It is ended if an ordinary command takes longer than ``patience`` seconds.
    """

    worker = WORKER
    patience = 60.0

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def load(self, model: Model, seconds: float) -> Mapping[str, Any]:
        entry = self.entry
        return self.ask(
            "load",
            seconds,
            module=entry.module,
            function=entry.function,
            model=asdict(model),
        )

    def array(self, command: str, **arguments: Any) -> NDArray[Any]:
        """Return the array that a command writes into a file."""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "answer.npy")
            self.ask(command, file=file, **arguments)
            found: NDArray[Any] = np.load(file)
        return found

    def ask(
        self, command: str, seconds: float | None = None, **arguments: Any
    ) -> Mapping[str, Any]:
        """Return a command's answer; an error if it says no, dies or takes too long."""
        process = self._process
        if process is None:
            if command != "load":
                raise SystemFailedError("ended before, see above")
            process = self._start()
        assert process.stdin is not None
        line = json.dumps({"do": command, **arguments}) + "\n"
        with suppress(BrokenPipeError):  # it died: reading says how
            process.stdin.write(line.encode())
            process.stdin.flush()
        patience = self.patience if seconds is None else seconds
        answer: dict[str, Any] = json.loads(self._read_line(process, patience))
        if "error" in answer:
            raise SystemFailedError(without_paths(answer["error"]))
        return answer

    def close(self) -> None:
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        with suppress(ProcessLookupError):  # it leads a session of its own
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self._folder.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        name = self.entry.environment
        python: Path | str | None = sys.executable
        if name is not None and find_spec(name) is None:
            python = python_of(name)
        if python is None:
            raise SystemFailedError("its environment is not made")
        # Compilers leave files behind when they are ended: all go with this folder.
        self._folder = tempfile.TemporaryDirectory(prefix="skforge-bench-")
        self._process = subprocess.Popen(
            [str(python), str(self.worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            # Compile times are those of a first time: nothing comes from a cache.
            env={**os.environ, "TMPDIR": self._folder.name, "SKFORGE_CACHE": "off"},
        )
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], patience: float) -> bytes:
        assert process.stdout is not None
        end = monotonic() + patience
        while b"\n" not in self._unread:
            ready, _, _ = select.select(
                [process.stdout], [], [], max(0.0, end - monotonic())
            )
            if not ready:
                self.close()
                raise SystemFailedError(f"took more than {patience:.0f} s")
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                process.wait()
                code = process.returncode
                self.close()
                how = f"signal {-code}" if code < 0 else f"exit status {code}"
                raise SystemFailedError(f"crashed ({how})")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def without_paths(text: str, longest: int = 120) -> str:
    """Return a message short and without folders of this machine.

    >>> without_paths("cannot read /home/me/model.json: no tree")
    'cannot read model.json: no tree'
    """
    text = re.sub(r"(?:/[\w.+~-]+)+/([\w.+~-]+)", r"\1", text)
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
