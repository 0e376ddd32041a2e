"""Secure sums over real Flower nodes of which some die after they have shared their keys: is the sum still right?

    python benchmarks/dropouts.py [--nodes 10] [--lost 0,1,3] [--bits 64,32]
    python benchmarks/dropouts.py --smoke       three clients in one process, of which one fails there: seconds

``fedstill flower up`` runs a SuperLink and SuperNodes on this machine. A node that is to die is killed with all of its processes
when it is asked for its masked model: its pairwise masks are in the sums of the others then, and are recovered from the shares
that these hold. Printed: the largest difference between the average's weights and those of plain FedAvg over the same clients,
beside what quantisation allows, and the bytes of a round's replies.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import safetensors.torch

from fedstill.algorithm import Client
from fedstill.algorithms.fedavg import FedAvg
from fedstill.algorithms.secure_average import MASK
from fedstill.config.secure import Secure
from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.local.masking import FixedPoint

LOST, SERVER = "FEDSTILL_LOST", "FEDSTILL_SERVER"  # the clients that are lost, separated by spaces; the process that prints


class Dying(FedAvg):
    """Some clients lose power when they are asked for their masked model."""

    name = "dying"

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """FedAvg's training, or the end of this node: Flower starts its processes in one group."""
        if phase == MASK and client.id in os.environ[LOST].split():
            if os.getpid() == int(os.environ[SERVER]):  # in one process: the others are to go on
                raise FedstillError("lost")
            os.killpg(os.getpgrp(), signal.SIGKILL)
        return super().train(message, client, phase)


class Lacking(FedAvg):
    """Plain FedAvg without the same clients."""

    name = "lacking"

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """FedAvg's training."""
        if client.id in os.environ[LOST].split():
            raise FedstillError("lost")
        return super().train(message, client, phase)


def tree(nodes: int, timeout: float, **more: Any) -> dict[str, Any]:
    """The configuration."""
    return {
        "rounds": 1,
        "data": {"domains": ["embedded:mnist"], "image_size": 12, "limit": 40 * nodes, "test_limit": 50},
        "clients": {"per_domain": nodes, "timeout": timeout},
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "local": {"steps": 2, "batch_size": 20},
        "engine": {"threads": 1},
        **more,
    }


def main() -> None:
    """Print a line for every number of lost nodes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=10)
    options.add_argument("--lost", default="0,1,3")
    options.add_argument("--bits", default="64,32")
    options.add_argument("--timeout", type=float, default=240.0, help="seconds after which a node is given up")
    options.add_argument("--smoke", action="store_true", help="see that it runs")
    given = options.parse_args()
    if given.smoke:
        given.nodes, given.lost, given.bits = 3, "1", "32"
    for bits in map(int, given.bits.split(",")):
        for lost in map(int, given.lost.split(",")):
            print(measured(given.nodes, lost, bits, given.timeout, here=given.smoke), flush=True)


def measured(nodes: int, lost: int, bits: int, timeout: float, here: bool) -> str:
    """One round in which ``lost`` of the nodes die."""
    # slow: they import torch
    from fedstill.run import run
    from fedstill.run.configuration import resolve
    from fedstill.run.history import read_history

    os.environ[LOST], os.environ[SERVER] = " ".join(f"mnist-{i}" for i in range(lost)), str(os.getpid())
    secure = {"algorithm": {"name": "dropouts:Dying"}, "privacy": {"secure": {"bits": bits, "threshold": 0.6}}}
    clock = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "secure")
        config = resolve(tree(nodes, timeout, **secure))
        if here:
            run(config, out)
        else:
            over_flower(config, Path(folder), out)
        plain = run(tree(nodes, timeout, algorithm={"name": "dropouts:Lacking"}), Path(folder, "plain"))
        [line], safe = read_history(out / "history.jsonl"), safetensors.torch.load_file(out / "model.safetensors")
    apart = max(float((safe[name] - tensor).abs().max()) for name, tensor in plain.model.state_dict().items())
    # a sum is divided by the shares of those that are left; either average is then rounded to float32, of numbers below 1
    left = nodes - lost
    allowed = FixedPoint(bits, Secure(bits=bits).limit).error(left) / (left / nodes) + 2.0**-24
    assert apart <= allowed, f"{apart} from the plain average, more than {allowed}"
    assert line["secure"] == {"asked": nodes, "summed": left}, line["secure"]
    assert {d["client"] for d in line["dropped"]} == set(os.environ[LOST].split()), line["dropped"]
    ratio, took = line["bytes_up"] / plain.history[0]["bytes_up"], time.perf_counter() - clock
    return (
        f"{nodes} nodes, {lost} lost, {bits} bits: {apart:.1e} from the plain average (at most {allowed:.1e}), "
        f"{ratio:.2f} times the bytes of the replies, {took:.0f} s"
    )


def over_flower(config: Config, folder: Path, out: Path) -> None:
    """The run by ``fedstill flower up``, with one node for each client."""
    from fedstill.config.tables import to_toml  # slow

    (folder / "run.toml").write_text(to_toml(config))
    command = [sys.executable, "-m", "fedstill", "flower", "up", str(folder / "run.toml"), "--out", str(out)]
    path = os.pathsep.join(str(Path(p or ".").resolve()) for p in sys.path)  # this file among them
    patience = 60.0 + 20.0 * config.clients.per_domain
    done = subprocess.run([*command, "--patience", str(patience)], env={**os.environ, "PYTHONPATH": path}, cwd=folder)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
