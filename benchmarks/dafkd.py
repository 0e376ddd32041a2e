"""One DaFKD round over one FedAvg round with the same classifier steps: the ratio, and which part costs what.

    python benchmarks/dafkd.py [--data DIR] [--model cnn-small] [--repeat 3] [--steps 20] [--distillation-steps 100]
    python benchmarks/dafkd.py --smoke      a run of seconds: its figures mean nothing

Processor time of one thread, median of the repeats, so that other work on the machine does not count. The parts are measured by
leaving them out: without the adversarial loss and the generator's turn the clients are FedAvg's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from fedstill.algorithm import Algorithm, Client, Reply, Round
from fedstill.algorithms import create
from fedstill.run.configuration import parse
from fedstill.task import Task


def algorithm(arguments: argparse.Namespace, options: dict[str, Any]) -> Algorithm:
    """20 clients, 8 a round, E steps of batch 32."""
    tree = {
        "data": {
            "domains": ["mnist" if arguments.data else "embedded:mnist"],
            **({"root": arguments.data} if arguments.data else {}),
            "limit": 4000,
            "test_limit": 100,
        },
        "clients": {"per_domain": 20, "per_round": 8},
        "model": {"name": arguments.model},
        "local": {"steps": arguments.steps, "batch_size": 32, "optimizer": {"name": "adam", "lr": 1e-3}},
        "evaluation": {"ensemble": False},
        "algorithm": options,
    }
    return create(Task(parse(tree)))


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of ``work`` and what it returned."""
    clock = time.process_time()
    result = work()
    return time.process_time() - clock, result


def clients(system: Algorithm, count: int = 8, number: int = 1) -> list[Reply]:
    """The clients' part of round ``number``."""
    server, context = system.start(), Round(number, 2, 0)
    replies = []
    for name in list(system.task.clients)[:count]:
        message = system.train(system.instruct(server, name, context), Client.of(system.task, name, number))
        info = system.task.clients[name]
        replies.append(Reply(name, info.domain, info.prototype, int(message.values["samples"]), lambda m=message: m))
    return replies


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--model", default="cnn-small")
    parser.add_argument("--preset", default="paper", choices=["paper", "converging", "authors-code"], help="the game")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--distillation-steps", type=int, default=100)
    parser.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    arguments = parser.parse_args()
    dafkd: dict[str, Any] = {"name": "dafkd", "preset": arguments.preset}
    if arguments.smoke:
        arguments.data, arguments.repeat, arguments.steps, arguments.distillation_steps = None, 1, 1, 1
        dafkd["source"] = {"size": 32}
    torch.set_num_threads(1)
    dafkd["distillation"] = {"steps": arguments.distillation_steps}
    plain = algorithm(arguments, {"name": "fedavg"})
    whole = algorithm(arguments, dafkd)
    still = algorithm(arguments, {**dafkd, "adversarial": {"generator_rounds": 1}})  # from round 2 on the generator rests
    turns: dict[str, list[float]] = {"plain": [], "still": [], "whole": [], "fuse plain": [], "fuse whole": []}
    for system in (plain, whole):  # the first optimiser of a process imports half of torch
        clients(system, 1)
    for _ in range(arguments.repeat):
        spent, replies = cpu(lambda: clients(plain))
        turns["plain"].append(spent)
        turns["fuse plain"].append(cpu(lambda r=replies: plain.fuse(plain.start(), r, Round(1, 1, 0)))[0])
        spent, replies = cpu(lambda: clients(whole))
        turns["whole"].append(spent)
        turns["fuse whole"].append(cpu(lambda r=replies: whole.fuse(whole.start(), r, Round(1, 1, 0)))[0])
        turns["still"].append(cpu(lambda: clients(still, number=2))[0])
    spent_on = {name: median(values) for name, values in turns.items()}
    base = spent_on["plain"] + spent_on["fuse plain"]
    total = spent_on["whole"] + spent_on["fuse whole"]
    parts = {
        "classifier (all of FedAvg)": base,
        "discriminator": spent_on["still"] - spent_on["plain"],
        "generator": spent_on["whole"] - spent_on["still"],
        "distillation": spent_on["fuse whole"] - spent_on["fuse plain"],
    }
    print(f"{arguments.model}, 8 clients, {arguments.steps} steps of 32, {arguments.distillation_steps} distillation steps")
    print(f"FedAvg round  {base:6.2f} s of processor time")
    print(f"DaFKD round   {total:6.2f} s, {total / base:.2f} times as much; in units of the FedAvg round:")
    for name, seconds in parts.items():
        print(f"  {name:28s}{seconds / base:6.2f}")


if __name__ == "__main__":
    main()
