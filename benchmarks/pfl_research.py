"""pfl-research (the package ``pfl``) at the task of fedavg.py, if it is installed: kept alive in processes of its own.

    python benchmarks/pfl_research.py --smoke     a run of seconds: its figures mean nothing

fedavg.py measures it beside our engine. The same clients take the same steps in every round, with the same network, from tensors
that are normalised already. It is spared what it does on request only: it evaluates nothing, reports nothing and keeps no
checkpoints. Several processes split each round's clients and add up their updates with ``torch.distributed`` (gloo), as pfl
does on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


class PflResearch:
    """``processes`` of pfl with ``threads`` each, run by ``python`` or by this interpreter."""

    def __init__(self, config: Any, processes: int, threads: int, python: str | None = None) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore::FutureWarning"}
        if processes > 1:
            environment["PFL_WORKER_ADDRESSES"] = ",".join(f"127.0.0.1:{free_port()}" for _ in range(processes))
        self.children = [
            subprocess.Popen(
                [python or sys.executable, str(HERE), "--child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**environment, "PFL_WORKER_RANK": str(rank)},
            )
            for rank in range(processes)
        ]
        hello = {"config": config.model_dump(mode="json", exclude_none=True), "threads": threads}
        self._ask(hello)  # the answers come when all have run a round

    def run(self, rounds: int) -> float:
        """Seconds of so many rounds."""
        clock = time.perf_counter()
        self._ask(rounds)
        return time.perf_counter() - clock

    def _ask(self, what: Any) -> None:
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write(json.dumps(what) + "\n")
            child.stdin.flush()
        for child in self.children:
            assert child.stdout is not None
            if child.stdout.readline() != "done\n":
                sys.exit("a process of pfl-research has ended; its error is above")

    def close(self) -> None:
        """Stop them."""
        for child in self.children:
            assert child.stdin is not None
            with contextlib.suppress(OSError):
                child.stdin.close()
        for child in self.children:
            child.wait()


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def child() -> None:
    """One process: the configuration in, then numbers of rounds in and a line out after each."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    hello = json.loads(sys.stdin.readline())

    # slow: they import torch; pfl connects the processes with each other when it is imported
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from torch import Tensor, nn
    from torch.nn import functional as F

    from fedstill.run.configuration import parse
    from fedstill.run.loop import sample_clients
    from fedstill.task import Task

    torch.set_num_threads(hello["threads"])
    np.random.seed(0)  # the processes must draw the same clients
    config = parse(hello["config"])
    task = Task(config)
    network = task.networks.get(task.networks.student)
    network.load_state_dict(task.networks.initial(task.networks.student))
    network.train()
    data = {name: task.data_of(name) for name in task.clients}
    whole = {name: (network.normalise(d.x), d.y) for name, d in data.items()}
    rate, each = config.local.optimizer.lr, config.clients.per_round
    assert each is not None

    class Learner(nn.Module):
        """The network with the two methods that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.network(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            return {}

    class Quiet(FederatedAveraging):  # type: ignore[misc,unused-ignore]
        """It would evaluate the clients of the first round, before and after their training."""

        def get_next_central_contexts(self, *given: Any, **more: Any) -> Any:
            contexts, model, metrics = super().get_next_central_contexts(*given, **more)
            return contexts and tuple(replace(one, do_evaluation=False) for one in contexts), model, metrics

    def shuffled(name: str) -> Any:
        x, y = whole[name]
        order = torch.randperm(len(x))
        return PyTorchTensorDataset((x[order], y[order]), user_id=name)

    learner = Learner()
    model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=rate, local_batch_size=config.local.batch_size)

    def run(rounds: int) -> None:
        chosen = iter([name for r in range(1, rounds + 1) for name in sample_clients(list(task.clients), each, 0, r)])
        clients = FederatedDataset(shuffled, lambda: next(chosen))
        plan = NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=each, val_cohort_size=None
        )
        backend = SimulatedBackend(training_data=clients, val_data=clients)
        Quiet().run(plan, backend, model, training, send_metrics_to_platform=False)

    run(1)
    answers.write("done\n")
    for line in sys.stdin:
        run(int(line))
        answers.write("done\n")


def main() -> None:
    """The child, or a short run of two of them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.child:
        child()
        return
    if not given.smoke:
        options.error("fedavg.py measures it; here is only --smoke")
    from fedavg import configuration  # imports torch

    for processes in (1, 2):
        with contextlib.closing(PflResearch(configuration(None, "mnist", "cnn-small", 16, 1, 100), processes, 1)) as one:
            print(f"{processes} processes: {one.run(2):.2f} s for two rounds")


if __name__ == "__main__":
    main()
