"""``python -m skforge``."""

from __future__ import annotations

from skforge._cli import main

if __name__ == "__main__":
    main()
