"""The command line: one command per file. A user's mistake gives one line on standard error and exit status 2.

``--help``, ``--list`` and completions must answer at once, so modules that are slow to import are imported inside the commands.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated

import typer

from fedstill.cli import audit, cache, compare, demo, figures, flower, fuse, listing, pack, parts, report, reproduce, run, use
from fedstill.cli.completion import bash_words
from fedstill.core.allocator import keep_freed_memory
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.version import __version__

__all__ = ["app", "main"]

# what has been done when one of these is stopped is not lost
RESUMED = {
    "run": "; a run in progress can be resumed with --resume",
    "flower": "; a run in progress can be resumed with --resume",
    "compare": "; the same command resumes it",
    "reproduce": "; the same command resumes it",
}

app = typer.Typer(
    name="fedstill",
    help="Fuse models trained where the data cannot leave.",
    no_args_is_help=True,
    suggest_commands=False,  # click itself makes suggestions
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedstill {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
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
app.command("audit")(audit.audit)
app.command("algorithms")(listing.algorithms)
app.command("presets")(listing.presets)
app.command("parts")(parts.parts)
app.command("cache")(cache.cache)
app.add_typer(flower.app, name="flower")


_usual = warnings.formatwarning


def _one_line(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning as one line; the program's own do not name the place that gave them.

    >>> _one_line("3 images are left out", UserWarning, "images.py", 56)
    'warning: 3 images are left out\\n'
    """
    return f"warning: {message}\n" if category is UserWarning else _usual(message, category, filename, lineno, line)


def main() -> None:
    """The entry point."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM is treated like Ctrl-C
    warnings.formatwarning = _one_line
    keep_freed_memory()
    try:
        with bash_words(os.environ):
            app()
    except FedstillError as error:
        # one line, whatever text it quotes
        hint = f" (--set {error.setting})" if error.setting else ""
        print("fedstill: " + "".join(c if c.isprintable() else " " for c in f"{error}{hint}"), file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # a path that cannot be written, a full disk; never a network error
        where = f": {error.filename}" if error.filename else ""
        print(f"fedstill: {error.strerror or first_line(error)}{where}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as ended:
        if ended.code == 130:  # typer exits with this code on Ctrl-C, silently
            command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
            print(f"fedstill: stopped{RESUMED.get(command, '')}", file=sys.stderr)
        raise
