"""Messages to the logger ``skforge``, without importing ``logging``.

It takes 3 ms to import. A process that has not done so shows no message below a
warning, so that none is lost.
"""

from __future__ import annotations

import sys

DEBUG, INFO, WARNING = 10, 20, 30


def log(level: int, message: str, *values: object) -> None:
    if level >= WARNING or "logging" in sys.modules:
        import logging

        logging.getLogger("skforge").log(level, message, *values)
