"""Compiles models in a thread of its own, at low priority, one after the other.

The model itself is read in the thread of a call, when nobody trains it. A child forked
while anything was read or compiled leaves all to the libraries: a lock might be held
that nobody there releases.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

CompileJob = Callable[[Callable[[], None]], None]


class StoppedError(Exception):
    """The process ends, or nothing is to be compiled any more."""


class Compiler:
    """The thread that compiles; it starts with the first model."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[CompileJob] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        #: One item for each thread that reads, compiles or compares models now.
        self.at_work: list[None] = []
        #: Whether this process may compile: not a child forked at the wrong time.
        self.is_usable = True

    def start(self, job: CompileJob) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="skforge-accelerate", daemon=True
            )
            self._thread.start()
            atexit.register(self.stop)
        self._queue.put(job)

    def stop(self) -> None:
        """Wait for the step at work: machine code must not run while Python ends."""
        self._stopped = True
        self._queue.put(lambda check: check())
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Wait until all that was started is compiled."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(lambda check: done.set())
            done.wait()

    def check(self) -> None:
        if self._stopped:
            raise StoppedError

    def after_fork_in_child(self) -> None:
        self.is_usable &= not self.at_work
        self._queue, self._thread = SimpleQueue(), None
        self.at_work = []

    def _run(self) -> None:
        _lower_priority()
        while not self._stopped:
            job = self._queue.get()
            self.at_work.append(None)
            try:
                job(self.check)
            except StoppedError:
                return
            finally:
                self.at_work.pop()


def _lower_priority() -> None:
    """Let other threads run first; on Linux, priorities are those of threads."""
    if hasattr(os, "setpriority"):
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        except OSError:
            return


COMPILER = Compiler()
