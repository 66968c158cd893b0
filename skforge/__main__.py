"""The command ``skforge``, for ``python -m`` where it is not on the path."""

from __future__ import annotations

from skforge.cli.main import main

if __name__ == "__main__":
    main()
