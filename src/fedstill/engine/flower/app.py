"""A complete Flower app for a configuration, ready for ``flwr run``: a few lines that import fedstill."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from fedstill.config.tables import Config, to_toml
from fedstill.core.errors import FedstillError

__all__ = ["write_app"]

SERVER = '''"""The server side: runs the configuration beside this file."""

from pathlib import Path

from fedstill.flower import server_app

app = server_app(Path(__file__).with_name("config.toml"))
'''

CLIENT = '''"""The client side: trains on the node's own data."""

from fedstill.flower import client_app

app = client_app()
'''

README = """# A federation with fedstill and Flower

`federation/config.toml` configures the run; `pyproject.toml` sets the output folder and the number of nodes to wait for.

    flwr run . LINK --stream --run-config 'nodes=3 out="/srv/runs/first"'

Resume an interrupted run with `--run-config 'resume=true out="/srv/runs/first"'`. Start each node where its data is:

    flower-supernode --superlink HOST:PORT --root-certificates ca.crt --auth-supernode-private-key node.key \\
        --node-config 'data="/path/to/data" domain="site-a"'

Set `clients.timeout` (how many seconds a round waits) and `clients.min_replies` in the configuration before a long run.
"""


def write_app(folder: Path, config: Config, *, nodes: int = 0, out: str = "runs/flower", name: str = "federation") -> Path:
    """Write an app that runs ``config`` to ``folder``, which must be new or empty.

    >>> import tempfile
    >>> from fedstill.config.tables import Config
    >>> folder = write_app(Path(tempfile.mkdtemp()) / "app", Config(data={"domains": ["embedded:mnist"]}))
    >>> sorted(path.name for path in folder.rglob("*") if path.is_file())
    ['README.md', '__init__.py', 'client_app.py', 'config.toml', 'pyproject.toml', 'server_app.py']
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedstillError(f"{folder} is not empty: choose a new folder")
    project = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {"name": name, "version": "1.0.0", "dependencies": ["fedstill[flower]"]},
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "fedstill",
                    "components": {"serverapp": "federation.server_app:app", "clientapp": "federation.client_app:app"},
                    "config": {"out": out, "resume": False, "nodes": nodes, "patience": 600, "at_once": 0},
                }
            },
        },
    }
    package = folder / "federation"
    package.mkdir(parents=True)
    for path, text in {
        folder / "pyproject.toml": tomli_w.dumps(project),
        folder / "README.md": README,
        package / "__init__.py": '"""The app."""\n',
        package / "server_app.py": SERVER,
        package / "client_app.py": CLIENT,
        package / "config.toml": to_toml(config),
    }.items():
        path.write_text(text)
    return folder
