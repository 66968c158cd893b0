"""Compiles models in a thread of its own, one after the other.

It has the priority of others. With a lower one it would hold Python's lock while busy
processes have its core: beside ten of them, compiling took 40 s and calls stood still
for up to 1 s at niceness 19, against 1.5 s and 0.06 s (7 s and 0.3 s at niceness 10).
Calls share Python's lock with it for the 0.1 to 0.4 s of CPU time that a kernel takes.
A child process takes 0.8 to 1 s more, for its imports; a profile function that gives
way each 0.5 ms makes 1.5 to 2.7 times as much of it.

The model itself is read in the thread of a call, when nobody trains it. A child forked
while anything was read or compiled leaves all to the libraries: a lock might be held
that nobody there releases.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from time import sleep, thread_time

#: Most seconds that a call sleeps while the thread works.
_MOST_REST = 5e-3

CompileJob = Callable[[Callable[[], None]], None]


class StoppedError(Exception):
    """The process ends, or nothing is to be compiled any more."""


class Compiler:
    """The thread that compiles; it starts with the first model."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[CompileJob] = SimpleQueue()
        #: By process: a forked child has none of its parent's threads.
        self._threads: dict[int, threading.Thread] = {}
        self._stopped = False
        #: Seconds of CPU time for imports, reading and compiling so far.
        self.spent = 0.0
        #: One item for each thread that reads, compiles or compares models now.
        self.at_work: list[None] = []
        #: Whether this process may compile: not a child forked at the wrong time.
        self.is_usable = True
        #: Whether what reads and compiles models is being imported, or is.
        self._imports = self.is_ready = False

    def start(self, job: CompileJob) -> None:
        thread = threading.Thread(
            target=self._run, name="skforge-accelerate", daemon=True
        )
        if self._threads.setdefault(os.getpid(), thread) is thread:
            thread.start()
            atexit.register(self.stop)
        self._queue.put(job)

    def prepares(self) -> bool:
        """Tell whether all is imported; if not, let the thread do it."""
        if not self._imports:
            self._imports = True
            self.start(self._import)
        return self.is_ready

    def give_way(self, seconds: float) -> None:
        """Let the thread have Python's lock for as long as a call had it.

        Libraries that give it away and take it back at once never let a thread have it:
        beside calls of scikit-learn's forests, .5 s of imports took more than 8 s.
        """
        if self.at_work:
            sleep(min(seconds, _MOST_REST))

    def _import(self, check: Callable[[], None]) -> None:
        with suppress(Exception):  # which a call will raise again, and tell
            from skforge.acceleration import kernels

            kernels.prepare()
        self.is_ready = True

    def stop(self) -> None:
        """Wait for the step at work: machine code must not run while Python ends."""
        self._stopped = True
        self._queue.put(lambda check: check())
        if (thread := self._threads.get(os.getpid())) is not None:
            thread.join()

    def wait(self) -> None:
        """Wait until all that was started is compiled."""
        if os.getpid() in self._threads:
            done = threading.Event()
            self._queue.put(lambda check: done.set())
            done.wait()

    def check(self) -> None:
        if self._stopped:
            raise StoppedError

    def after_fork_in_child(self) -> None:
        self.is_usable &= not self.at_work
        self._queue = SimpleQueue()
        self.at_work = []

    def _run(self) -> None:
        while not self._stopped:
            job = self._queue.get()
            self.at_work.append(None)
            start = thread_time()
            try:
                job(self.check)
            except StoppedError:
                return
            finally:
                self.spent += thread_time() - start
                self.at_work.pop()


COMPILER = Compiler()
