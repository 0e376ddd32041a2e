"""Sample-level differential privacy in a client: training by DP-SGD, its ledger, and what else may leave.

Systems train on a client's own data through :func:`client_fit`. With ``[privacy.sample]`` that is DP-SGD, whose cost is added to
``client.ledger``; engines keep the ledger in the client's private state. :func:`released` is the gate that each reply passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedstill.algorithm import Algorithm, Client
from fedstill.config.tables import Config
from fedstill.core.accounting import Ledger, charged, need_privacy, noise_for
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.core.streams import secret_stream
from fedstill.local.reports.checks import COVERED
from fedstill.models.network import Network
from fedstill.task import Task
from fedstill.task.sites import NodeTask
from fedstill.training.fit import Fit, fit, steps_of
from fedstill.training.options import Local
from fedstill.training.private import DPSGD, check_network, sampling_rate

__all__ = ["ACCURACY", "EPSILON", "check_private", "client_fit", "covered_by", "released"]

EPSILON = "epsilon"  # the value of a reply that states what the client has spent
PUBLIC = ("samples", "key", "seal_key", "mask_key", "boxes", "shares")  # values that tell of no sample
WITHHELD = ("loss",)
ACCURACY = "accuracy of "  # before a test domain's name: how well a client's own model does there


def client_fit(
    network: Network, client: Client, local: Local, *, purpose: str = "fit", planned: int | None = None, **options: Any
) -> Fit:
    """:func:`fit` on the client's own data; with ``privacy.sample`` by DP-SGD, whose cost is added to the client's ledger.

    ``planned`` is the number of steps of a client that takes part in every round, if it is not that of ``local`` in each.
    """
    rng, sample = client.rng(purpose), client.task.config.privacy.sample
    if sample is None:
        return fit(network, client.data, local, rng=rng, **options)
    n, config = len(client.data), client.task.config
    rate, steps = sampling_rate(n, local.batch_size), steps_of(n, local, network)
    noise = noise_of(config, rate, planned or config.rounds * steps)
    after = client.ledger.gaussian(noise, rate, steps)
    client.ledger = charged(client.ledger, after, sample.epsilon, sample.delta, "round")
    secret = secret_stream() if sample.secret else client.rng(purpose, "privacy")
    return fit(network, client.data, local, rng=rng, private=DPSGD(noise, sample.max_grad_norm, secret), **options)


def noise_of(config: Config, rate: float, steps: int) -> float:
    """The noise in force: as configured, or the least with which ``steps`` steps are within the budget, beside a report in every
    round if reports have noise."""
    sample, reports = config.privacy.sample, config.privacy.reports
    assert sample is not None
    if sample.noise is not None:
        return sample.noise
    assert sample.epsilon is not None
    told = Ledger() if reports is None or reports.noise is None else Ledger().gaussian(reports.noise, steps=config.rounds)
    return noise_for(sample.epsilon, sample.delta, rate, steps, told)


def covered_by(config: Config, own: Sequence[str], item: str) -> str | None:
    """The mechanism that covers an item of a reply, by its table in ``[privacy]``; None if there is none.

    ``own`` names the items that a system makes from privately trained weights alone (``Algorithm.private_items``).

    >>> config = Config(data={"domains": []}, privacy={"sample": {"noise": 1.0}})
    >>> covered_by(config, ("model",), "model"), covered_by(config, ("model",), "counts")
    ('sample', None)
    """
    if config.privacy.sample is not None and (item in own or item == "masked"):  # masks hide a model that is private already
        return "sample"
    return "reports" if config.privacy.reports is not None and item in COVERED else None


def check_private(algorithm: Algorithm) -> None:
    """Refuse what would leave a client without a stated mechanism, before any client trains."""
    task, config = algorithm.task, algorithm.task.config
    if config.privacy.sample is None:
        return
    need_privacy("privacy.sample")
    if config.engine.precision != "float32":
        raise FedstillError("privacy.sample clips gradients in full precision: set engine.precision = 'float32'")
    if not algorithm.private_items:
        raise FedstillError(f"privacy.sample is not for {algorithm.name}: its clients learn otherwise than by sums over samples")
    for item in algorithm.sent():
        if covered_by(config, algorithm.private_items, item) is None:
            raise FedstillError(
                f"privacy.sample covers trained weights, but clients of {algorithm.name} also send '{item}' of their samples"
            )
    told = [item for item in algorithm.sent() if item not in algorithm.private_items]
    if len(told) > 1 and config.privacy.sample.noise is None:
        raise FedstillError(f"privacy.sample.epsilon plans for one report, and clients send {' and '.join(told)}: set noise")
    if task.kind == "vector" and any(domain.standardised != "none" for domain in task.raw_domains.values()):
        raise FedstillError("privacy.sample does not cover means and deviations of rows: set data.standardise = 'none'")
    line = getattr(algorithm.options, "line", None)
    if line and line.judge == "clients":
        raise FedstillError(
            "privacy.sample: verdicts on held-out samples are not covered: set algorithm.line.judge to 'server', 'pool' or 'none'"
        )
    poison = config.data.poison
    if poison is not None and poison.kind == "sign-flip":
        raise FedstillError("data.poison.kind = 'sign-flip' is an experiment without privacy.sample: remove one of them")
    for name in task.networks.prototypes:
        check_network(task.networks.get(name), name, example(task))
    sizes = [info.samples for info in task.clients.values() if info.samples]
    if sizes:  # a budget that no noise can keep is a mistake of the configuration, not of a client
        local, network = config.local, task.networks.get(task.networks.prototypes[0])
        steps = config.rounds * steps_of(min(sizes), local, network)
        noise_of(config, sampling_rate(min(sizes), local.batch_size), steps)


def example(task: Task) -> torch.Tensor:
    """Two raw samples of the task's shape, to try a network with."""
    if task.kept_trunk is not None:
        return torch.rand(2, *task.shape)
    kind = {"image": torch.uint8, "text": torch.int64}.get(task.kind, torch.float32)
    return torch.ones(2, *task.raw_shape, dtype=kind)


def released(algorithm: Algorithm, client: Client, reply: Message, before: Ledger) -> Message:
    """The reply as it may leave: without the loss, and with what the client has spent. Anything that no mechanism covers is an
    error, and so are weights that were not trained privately."""
    config = algorithm.task.config
    sample = config.privacy.sample
    if sample is None:
        return reply
    # a node that brings its own data also brings its own test data
    own = [name for name in reply.values if name.startswith(ACCURACY)] if isinstance(client.task, NodeTask) else []
    reply = reply.without(*WITHHELD, *own)
    for item in reply.groups():
        if covered_by(config, algorithm.private_items, item) is None:
            raise FedstillError(f"privacy.sample does not cover '{item}'")
    if "model" in reply.groups() and client.ledger == before:
        raise FedstillError("privacy.sample: these weights were not trained by DP-SGD")
    for name in reply.values:
        if name not in PUBLIC and not name.startswith(ACCURACY):
            raise FedstillError(f"privacy.sample does not cover '{name}'")
    return reply.with_parts(**{EPSILON: client.ledger.epsilon(sample.delta)})
