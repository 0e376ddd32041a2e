"""A whole Flower federation on this machine: a SuperLink and SuperNodes as real processes that talk over loopback.

Use it to try out a deployment: the processes, certificates, keys and messages are those of several machines, only the cable is
missing. When the ``with`` block ends, for any reason, everything that was started is stopped; if this process is killed, a
keeper does it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedstill.core.errors import FedstillError
from fedstill.engine.flower.certificates import make_certificates, make_key
from fedstill.engine.flower.records import QUIET
from fedstill.engine.processes import Keeper, descendants, kill

__all__ = ["Loopback"]

LINK = "loopback"  # the connection's name in Flower's configuration
LISTENING = range(20_000, 32_000)  # ports for our processes; Linux gives 32768 and above to outgoing connections


class Loopback:
    """A local federation; its logs, keys and Flower's own files are in ``folder``.

    ``tls`` encrypts every connection with new certificates and admits only nodes whose keys are registered.
    """

    def __init__(self, folder: Path, *, tls: bool = False):
        self.folder = folder.resolve()
        self.tls = tls
        self.address = f"127.0.0.1:{free_port()}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.listeners: dict[str, str] = {}  # node -> where its processes find it
        self.keeper: Keeper
        self.environment = {
            **os.environ,
            **{name: os.environ.get(name, value) for name, value in QUIET.items()},
            "FLWR_HOME": str(self.folder / "flwr"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join(str(Path(p or ".").resolve()) for p in sys.path),
        }

    def __enter__(self) -> Loopback:
        self.keeper = Keeper()
        try:
            self._start_link()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- starting and stopping ------------------------------------------------------------------------------------------------

    def start(self, name: str, command: Sequence[str], more: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
        """Start a process that ends with the federation; its output goes to ``NAME.log``."""
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.environment, **more},
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is ours to handle, and the group can be stopped as a whole
            )
        self.processes.append(process)
        self.keeper.watch(process.pid)
        return process

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.folder / f"{name}.log"

    def close(self) -> None:
        """Stop everything, nodes before the link, first with SIGTERM and then with SIGKILL."""
        family = descendants([process.pid for process in self.processes])  # some leave their process group
        for process in reversed(self.processes):
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for process in reversed(self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)  # also ends what a stopped process left in its group
            process.wait()
        kill(family)
        self.processes.clear()
        self.keeper.dismiss()

    def _start_link(self) -> None:
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        connection: dict[str, Any] = {"address": self.address}
        host, port = self.address.split(":")
        command = ["flower-superlink", "--host", host, "--port", port, "--disable-runtime-dependency-installation"]
        if self.tls:
            make_certificates(self.folder / "certificates")
            files = {name: str(self.folder / "certificates" / name) for name in ("ca.crt", "server.crt", "server.key")}
            command += ["--ssl-ca-certfile", files["ca.crt"], "--ssl-certfile", files["server.crt"]]
            command += ["--ssl-keyfile", files["server.key"], "--enable-supernode-auth"]
            command += ["--database", str(self.folder / "link.db")]
            connection["root-certificates"] = files["ca.crt"]
        else:
            command.append("--insecure")
            connection["insecure"] = True
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": LINK, LINK: connection}}))
        link = self.start("superlink", command)
        self._wait(lambda: listening(self.address), link, "superlink")

    def _wait(self, ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str, patience: float = 90.0) -> None:
        deadline = time.monotonic() + patience
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                lines = self.log(name).read_text(errors="replace").strip().splitlines()
                raise FedstillError(f"the {name} did not start: {lines[-1] if lines else 'its log is empty'}")
            time.sleep(0.1)

    def node(self, name: str, config: Mapping[str, Any], *, registered: bool = True) -> subprocess.Popen[bytes]:
        """Start a SuperNode with a node configuration. With TLS it gets a key, registered unless ``registered`` is false."""
        host, port = "127.0.0.1", free_port()
        self.listeners[name] = f"{host}:{port}"
        settings = " ".join(f"{key}={_quoted(value)}" for key, value in config.items())
        command = ["flower-supernode", "--superlink", self.address, "--host", host, "--port", str(port)]
        command += ["--node-config", settings]
        if self.tls:
            key = self.folder / "keys" / name
            make_key(key)
            if registered:
                done = self.flwr("supernode", "register", f"{key}.pub", LINK)
                if done.returncode:
                    raise FedstillError(f"the key of {name} was not registered: {done.stdout.strip()[-300:]}")
            certificates = str(self.folder / "certificates" / "ca.crt")
            command += ["--root-certificates", certificates, "--auth-supernode-private-key", str(key)]
        else:
            command.append("--insecure")
        return self.start(name, command)

    def nodes(self, settings: Mapping[str, Mapping[str, Any]], at_once: int, told: Callable[[int], None]) -> None:
        """Start a node for each configuration. No more than ``at_once`` of them are still importing at any time: if all did so
        together, on a small machine none would be there in time. ``told`` hears how many are up."""
        importing: deque[tuple[str, subprocess.Popen[bytes]]] = deque()
        for number, (name, config) in enumerate(settings.items()):
            if len(importing) == at_once:
                self._await(*importing.popleft())
                told(number + 1 - at_once)
            importing.append((name, self.node(name, config)))
        for name, process in importing:
            self._await(name, process)

    def _await(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self._wait(lambda: listening(self.listeners[name]), process, name, 300.0)

    # -- running --------------------------------------------------------------------------------------------------------------

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Flower's own command line, connected to this federation."""
        return subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def submit(self, app: Path, settings: Mapping[str, Any], name: str = "run") -> subprocess.Popen[bytes]:
        """Start an app; the process streams its log and ends with it."""
        text = " ".join(f"{key}={_quoted(value)}" for key, value in settings.items())
        return self.start(name, ["flwr", "run", str(app.resolve()), LINK, "--stream", "--run-config", text])

    def last(self, name: str, pattern: str) -> str | None:
        """The last text in a process's log that fits a pattern."""
        found = re.findall(pattern, self.log(name).read_text(errors="replace"))
        return found[-1] if found else None

    def problem(self, name: str = "run") -> str:
        """Why a run failed: the last error in its log, in one line."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.log(name).read_text(errors="replace"))
        errors = re.findall(r"(?:FedstillError|[A-Za-z]*Error): .*", text)
        lines = [line for line in text.splitlines() if line.strip()]
        return (errors or lines or ["its log is empty"])[-1].removeprefix("fedstill.core.errors.").removeprefix("FedstillError: ")


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str | Path) else str(value)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def free_port() -> int:
    """A free port.

    It is drawn from below the range of outgoing connections: any connection made before our process listens could take a port
    in that range, and a node that does not start keeps the others waiting.
    """
    for port in random.SystemRandom().sample(LISTENING, 100):
        with contextlib.suppress(OSError), contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise FedstillError("no free port between 20000 and 31999 was found on this machine")


def listening(address: str) -> bool:
    """Whether something answers at ``host:port``."""
    host, port = address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False
