"""The source libraries as judges, in a process that may crash, hang or be killed.

``Oracle(kind)`` starts ``python -m tests.reliability.oracle KIND``. That process
imports the library and forks; the child answers. A child that dies costs a fork and no
import, and what killed it is the answer. A child that has judged many files, or that
was asked again to be sure, makes room for a fresh one: a library that wrote past its
memory must not speak of the files behind.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.reliability.processes import ONE_THREAD, environment

#: Seconds that a library may take for one small file, and files of one child.
SECONDS, FILES = 3, 500
#: Address space that a child may add to what the library has taken.
SPARE = 2 << 30
_LENGTH = struct.Struct("<q")
#: Bytes of outputs; a changed file may announce millions of classes.
_MOST = 1 << 26


@dataclass(slots=True)
class Answer:
    """What a library said of a file, or of rows.

    ``outcome`` is "read", "refused" or "crashed" (signals and hangs); ``what`` says
    why. A file that was read has columns and the dtype of rows, if the library knows
    them; rows have outputs.
    """

    outcome: str
    what: str = ""
    n_features: int | None = None
    dtype: str = "float32"
    outputs: dict[str, Any] = field(default_factory=dict)


class Oracle:
    """A library in a process of its own.

    Parameters
    ----------
    kind : str
        Of ``LIBRARIES``.
    warm : path
        A good file, read once before the process forks: what the library imports and
        sets up at the first model is not done by every child again.
    """

    def __init__(self, kind: str, warm: Path) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.reliability.oracle", kind, str(warm)),
            env=environment(ONE_THREAD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def load(self, path: Path) -> Answer:
        """Return whether the library reads a file; it keeps what it read."""
        return self._ask(("load", str(path)))

    def predict(self, rows: Any) -> Answer:
        """Return what the model that was read last answers."""
        return self._ask(("predict", rows))

    def renew(self) -> None:
        """Let the next file be judged by a fresh process."""
        self._ask(("renew",))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, question: tuple[Any, ...]) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _write(self._process.stdin.fileno(), pickle.dumps(question))
        answer = _read(self._process.stdout.fileno())
        if answer is None:
            raise RuntimeError("the library's process has ended")
        found: Answer = pickle.loads(answer)
        return found


def _write(descriptor: int, payload: bytes) -> None:
    left = memoryview(_LENGTH.pack(len(payload)) + payload)
    while left:
        left = left[os.write(descriptor, left) :]


def _read(descriptor: int) -> bytes | None:
    """Return a message, without reading past it; None at the end."""
    head = _exactly(descriptor, _LENGTH.size)
    return None if head is None else _exactly(descriptor, _LENGTH.unpack(head)[0])


def _exactly(descriptor: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


# ------------------------------------------------------------ in that process

Model = Any
Reader = Callable[[str], tuple[Model, Answer]]
Predictor = Callable[[Model, Any], dict[str, Any]]


def _xgboost(
    content: Callable[[str], str | bytearray] = str,
) -> tuple[Reader, Predictor]:
    import xgboost

    xgboost.set_config(verbosity=0)

    def read(path: str) -> tuple[Model, Answer]:
        booster = xgboost.Booster({"nthread": 1}, model_file=content(path))
        # NumPy rows need no names of columns, and say nothing of categories
        booster.feature_names = booster.feature_types = None
        return booster, Answer("read", "", booster.num_features())

    def predict(booster: Model, rows: Any) -> dict[str, Any]:
        matrix = xgboost.DMatrix(rows, nthread=1)
        # all rounds, or those of early stopping, as the wrapper that saved it predicts
        attributes = booster.attributes()
        best = "scikit_learn" in attributes and "best_iteration" in attributes
        last = booster.best_iteration + 1 if best else 0
        rounds = {"iteration_range": (0, last)}
        return {
            "raw": booster.predict(matrix, output_margin=True, **rounds),
            "value": booster.predict(matrix, **rounds),
        }

    return read, predict


def _old_xgboost() -> tuple[Reader, Predictor]:
    """Return those of today's XGBoost, which gets what skforge makes of a file."""
    from skforge.frontends.xgboost.as_json import as_json

    return _xgboost(lambda path: bytearray(as_json(Path(path).read_bytes(), path)))


def _lightgbm() -> tuple[Reader, Predictor]:
    import lightgbm

    def read(path: str) -> tuple[Model, Answer]:
        booster = lightgbm.Booster(model_file=path)
        return booster, Answer("read", "", booster.num_feature(), "float64")

    def predict(booster: Model, rows: Any) -> dict[str, Any]:
        return {
            "raw": booster.predict(rows, raw_score=True, num_threads=1),
            "value": booster.predict(rows, num_threads=1),
        }

    return read, predict


def _onnx() -> tuple[Reader, Predictor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    dtypes = {"tensor(double)": "float64", "tensor(int64)": "int64"}
    dtypes["tensor(int32)"] = "int32"

    def read(path: str) -> tuple[Model, Answer]:
        session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        place = session.get_inputs()[0]
        width = place.shape[-1] if place.shape else None
        n = width if isinstance(width, int) else None
        return session, Answer("read", "", n, dtypes.get(place.type, "float32"))

    def predict(session: Model, rows: Any) -> dict[str, Any]:
        found = session.run(None, {session.get_inputs()[0].name: rows})
        return {str(number): output for number, output in enumerate(found)}

    return read, predict


LIBRARIES: dict[str, Callable[[], tuple[Reader, Predictor]]] = {
    "XGBoost JSON": _xgboost,
    "XGBoost UBJSON": _xgboost,
    "XGBoost binary": _old_xgboost,
    "LightGBM text": _lightgbm,
    "ONNX": _onnx,
}


_NOT_NEEDED = ("pandas", "sklearn", "pyarrow", "matplotlib", "dask", "polars", "cffi")


def main(kind: str, warm: str) -> None:
    """Answer until nobody asks; what the library prints is thrown away."""
    questions, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    # a small process forks fast, and none of these is needed for NumPy rows
    sys.modules.update(dict.fromkeys(_NOT_NEEDED))
    read, predict = LIBRARIES[kind]()
    model, facts = read(warm)
    predict(model, np.zeros((1, facts.n_features or 1), facts.dtype))
    del model
    gc.collect()
    gc.freeze()  # children share what is there
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    while True:
        child = os.fork()
        if not child:
            with suppress(BaseException):
                resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os._exit(_answer(questions, answers, read, predict))
            os._exit(9)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == _DONE:
            return
        if status != _AGAIN:
            name = signal.Signals(-status).name if status < 0 else f"exit {status}"
            what = "hangs" if name == "SIGALRM" else name
            _write(answers, pickle.dumps(Answer("crashed", what)))


_DONE, _AGAIN = 0, 3


def _answer(questions: int, answers: int, read: Reader, predict: Predictor) -> int:
    """Answer for a while; return why it ended."""
    model: Model = None
    judged = 0
    while True:
        if judged >= FILES and model is None:
            return _AGAIN
        message = _read(questions)
        if message is None:
            return _DONE
        word, *what = pickle.loads(message)
        signal.alarm(SECONDS)  # its default action ends this process, in C code too
        try:
            if word == "renew":
                answer = Answer("read")
            elif word == "load":
                model, judged = None, judged + 1
                model, answer = read(what[0])
            else:
                outputs = predict(model, what[0])
                if sum(np.asarray(one).nbytes for one in outputs.values()) > _MOST:
                    raise MemoryError("more outputs than this process passes on")
                answer = Answer("read", outputs=outputs)
        except Exception as error:  # noqa: BLE001 - the library's own way to refuse
            answer = Answer("refused", f"{type(error).__name__}: {str(error)[:500]}")
        signal.alarm(0)
        if word == "predict" or (word == "load" and answer.outcome == "refused"):
            model = None
        _write(answers, pickle.dumps(answer))
        if word == "renew":
            return _AGAIN


def same(found: Any, expected: Any) -> bool:
    """Tell whether two answers have the same bits; NaN may have any.

    >>> same(np.array([0.0, np.nan]), np.array([0.0, np.nan]))
    True
    >>> same(np.array([0.0]), np.array([-0.0]))
    False
    """
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    either = np.isnan(found) & np.isnan(expected)
    bits = np.dtype(f"u{found.dtype.itemsize}")
    equal = np.ascontiguousarray(found).view(bits) == np.ascontiguousarray(
        expected
    ).view(bits)
    return bool(np.all(equal | either))


if __name__ == "__main__":
    # by its own name, so that both processes speak of the same Answer
    from tests.reliability.oracle import main as answer_questions

    answer_questions(*sys.argv[1:])
