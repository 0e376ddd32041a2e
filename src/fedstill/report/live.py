"""Following runs in the browser: a small local server whose page polls for newer data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedstill.core.errors import FedstillError
from fedstill.report.page import page_data, render
from fedstill.report.runs import find_runs, load_run

__all__ = ["live_server"]

_WATCHED = ("history.jsonl", "summary.json", "config.toml", "clients.json", "confusion.json", "features.json")


def live_server(folders: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server for the page on 127.0.0.1, not yet serving; call ``serve_forever``. Port 0 chooses a free port.

    Only requests whose ``Host`` is this address are answered: a foreign page that resolves its own name to 127.0.0.1 gets
    nothing (DNS rebinding).
    """
    places = [Path(folder) for folder in folders]
    find_runs(places)  # a missing folder is reported now, not in the browser

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host") not in (f"127.0.0.1:{server.server_port}", f"localhost:{server.server_port}"):
                self._answer(403, "text/plain", "this server answers only its own machine")
                return
            path = urlsplit(self.path).path
            if path == "/":
                self._answer(200, "text/html", render(_data(places), live=True))
            elif path == "/data.json":
                stamp = _stamp(places)
                if self.headers.get("If-None-Match") == stamp:
                    self._answer(304, "application/json", "", stamp)
                else:
                    self._answer(200, "application/json", json.dumps(_data(places) | {"live": True}), stamp)
            else:
                self._answer(404, "text/plain", "not found")

        def _answer(self, status: int, kind: str, text: str, stamp: str | None = None) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            if stamp:
                self.send_header("ETag", stamp)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: the terminal belongs to the user."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise FedstillError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
    server.daemon_threads = True
    return server


def _data(places: Sequence[Path]) -> dict[str, Any]:
    return page_data([load_run(folder) for folder in find_runs(places)], root=places)


def _stamp(places: Sequence[Path]) -> str:
    """A stamp that changes when any file that the page shows changes."""
    seen = []
    for folder in find_runs(places):
        pictures = [*folder.glob("samples/*.png"), *folder.glob("figures/*.png")]
        for path in [*(folder / name for name in _WATCHED), *pictures]:
            if path.exists():
                seen.append(f"{path}:{path.stat().st_mtime_ns}:{path.stat().st_size}")
    return '"' + hashlib.sha256("\n".join(seen).encode()).hexdigest()[:24] + '"'
