"""``fedstill report``: one self-contained page for any runs, or a live page that follows them."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedstill.core.errors import FedstillError

__all__ = ["report"]


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that hold them.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; by default report.html, in the folder if there is only one.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Follow the runs in the browser instead, on this machine only.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of --live; 0 chooses a free one.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page for any runs: tables, curves, weights, costs, configurations."""
    # slow, and other commands do not need them
    from fedstill.report.live import live_server
    from fedstill.report.page import build_page

    if not live:
        page = build_page(folders, out)
        typer.echo(f"report: {page}")
        if open_page:
            webbrowser.open(page.resolve().as_uri())
        return
    if out is not None:
        raise FedstillError("--live serves the page and writes no file: omit --out")
    with live_server(folders, port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        typer.echo(f"following at {address} (stop with Ctrl-C)")
        if open_page:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped")
