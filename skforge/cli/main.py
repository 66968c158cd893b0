"""``skforge demo | run | bench | predict | inspect | tune | verify | export | ...``.

Exit codes: 0 success; 1 predictions differ from the source's; 2 a bad option, model
file, data file or schedule; 3 a fault of skforge, or first rows that the library
answers otherwise; 130 Ctrl-C.
"""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from skforge._version import __version__
from skforge.cli import library
from skforge.cli.bench import bench, demo
from skforge.cli.convert import convert
from skforge.cli.doctor import doctor
from skforge.cli.errors import BAD_USAGE, INTERRUPTED, OneLineGroup, PlainCommand
from skforge.cli.export import export
from skforge.cli.inspect import inspect
from skforge.cli.options import with_options
from skforge.cli.predict import predict
from skforge.cli.run import run
from skforge.cli.screen import like
from skforge.cli.tune import plot, tune
from skforge.cli.verify import verify
from skforge.cli.warm import warm

app = typer.Typer(
    cls=OneLineGroup,
    help="Compile tree ensembles without changing one bit of a prediction.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_COMMANDS = (
    *(demo, bench, predict, inspect, tune, verify),
    *(convert, export, warm, plot, doctor),
)
for _command in _COMMANDS:
    app.command(cls=PlainCommand)(with_options(_command))
# what follows the program is its own
app.command(
    cls=PlainCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)(with_options(run))


def main() -> None:
    codecs.register_error("like", like)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            device = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(device, "r" if name == "stdin" else "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="like")  # a terminal without "×" or "µ"
    library.alone = True
    try:
        app(prog_name="skforge")
    except SystemExit as stopped:
        own = sys.argv[1:2] != ["run"]  # a program may have more to do
        if own and stopped.code == INTERRUPTED:
            sys.stderr.flush()
            os._exit(INTERRUPTED)  # threads of pyarrow may abort Python's own end
        raise


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skforge {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(BAD_USAGE)
