"""The command line: one command a file; a user's mistake is one line on standard error and exit status 2.

A question (``--help``, ``--list``, a completion) is answered at once: what is slow to import is imported inside the command.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from fedstill.cli import cache, compare, demo, figures, flower, fuse, listing, pack, parts, report, reproduce, run, use
from fedstill.cli.completion import bash_words
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="fedstill",
    help="Fuse models trained where the data cannot leave.",
    no_args_is_help=True,
    suggest_commands=False,  # click itself says what may be meant
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedstill {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")] = False,
) -> None:
    """Fuse models trained where the data cannot leave."""


app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("figures")(figures.figures)
app.command("predict")(use.predict)
app.command("evaluate")(use.evaluate)
app.command("export")(use.export)
app.command("pack")(pack.pack)
app.command("fuse")(fuse.fuse)
app.command("algorithms")(listing.algorithms)
app.command("presets")(listing.presets)
app.command("parts")(parts.parts)
app.command("cache")(cache.cache)
app.add_typer(flower.app, name="flower")


def main() -> None:
    """The entry point."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite request to end is treated like Ctrl-C
    try:
        with bash_words(os.environ):
            app()
    except FedstillError as error:
        # one line, whatever names of others it quotes
        hint = f" (--set {error.setting})" if error.setting else ""
        print("fedstill: " + "".join(c if c.isprintable() else " " for c in f"{error}{hint}"), file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # a path that cannot be written, a full disk; never a fault of the network's
        where = f": {error.filename}" if error.filename else ""
        print(f"fedstill: {error.strerror or first_line(error)}{where}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as ended:
        if ended.code == 130:  # what typer makes of Ctrl-C, without a word
            print("fedstill: stopped; a run that was in progress can be resumed with --resume", file=sys.stderr)
        raise
