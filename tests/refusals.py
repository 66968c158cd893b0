"""What errors say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def error_of(
    kind: type[BaseException], call: Callable[..., Any], /, *args: Any, **options: Any
) -> str:
    """Return the text of the error that a call raises."""
    with pytest.raises(kind) as error:
        call(*args, **options)
    return str(error.value)
