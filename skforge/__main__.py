"""The command ``skforge``, which is also ``python -m skforge``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; if a package is missing, say so in one line."""
    try:
        from skforge.cli.main import main as run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "skforge"):
            raise
        print(
            "Error: the command line needs typer and rich, and what else pip installs "
            f"with skforge unless it is told --no-deps: {package} is missing.",
            file=sys.stderr,
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
