"""Notes in each process, a few times a second, what kernels answered: for ``COUNTED``.

Servers end their workers without a word, so that no report at exit would tell of them.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from pathlib import Path


def note() -> None:
    from skforge import acceleration_report

    if lines := [line._asdict() for line in acceleration_report()]:
        file = Path(os.environ["COUNTED"], f"{os.getpid()}.{threading.get_ident()}")
        file.write_text(json.dumps(lines), encoding="utf-8")
        file.rename(file.with_name(f"{os.getpid()}.counted"))


def keep_noting() -> None:
    while True:
        time.sleep(0.25)
        note()


def compile_at_once() -> None:
    """Let kernels answer from a model's third call on, even where they are slower."""
    from skforge import Schedule, config
    from skforge.acceleration import api
    from skforge.acceleration.settings import Settings

    if config.accelerates():
        plan = Schedule()
        api.start((), Settings(min_rows=0, min_calls=1, eager=True, schedule=plan))


def begin() -> None:
    threading.Thread(target=keep_noting, daemon=True).start()


if os.environ.get("COUNTED_EAGER"):
    compile_at_once()
begin()
atexit.register(note)
os.register_at_fork(after_in_child=begin)
