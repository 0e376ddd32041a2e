"""Optimisers by their options, and their state from one round to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.models.network import Network
from fedstill.training.options import Optimizer

__all__ = ["Parameters", "by_depth", "make_optimizer", "optimizer_state", "restore_optimizer", "without_compiler"]

Parameters = Sequence[nn.Parameter] | list[dict[str, Any]]  # or groups of them, each with its rate


def by_depth(network: Network, parameters: Sequence[nn.Parameter], factor: float, lr: float) -> Parameters:
    """The parameters in two groups: those of head and neck with the rate ``lr``, those below with ``factor`` times that.

    >>> from fedstill.models import build
    >>> network = build("mlp", classes=2, shape=(1, 2, 2), hidden=[3])
    >>> [(len(group["params"]), group["lr"]) for group in by_depth(network, list(network.parameters()), 0.1, 1.0)]
    [(2, 1.0), (2, 0.1)]
    """
    if factor == 1:
        return parameters
    above = {id(p) for part in (network.head, network.neck) for p in part.parameters()}
    groups = [[p for p in parameters if (id(p) in above) == high] for high in (True, False)]
    return [{"params": group, "lr": lr * f} for group, f in zip(groups, (1.0, factor), strict=True) if group]


def make_optimizer(options: Optimizer, parameters: Parameters, lr: float | None = None) -> torch.optim.Optimizer:
    """The torch optimiser that the options name."""
    rate = options.lr if lr is None else lr
    groups = [group["params"] if isinstance(group, dict) else [group] for group in parameters]
    # a step in one pass over the memory: on a CPU, 0.2 to 0.6 of the time of one operation after another
    fused = all(parameter.device.type == "cpu" for group in groups for parameter in group)
    how: dict[str, Any] = {"lr": rate, "weight_decay": options.weight_decay, "fused": fused, "foreach": not fused}
    if options.name == "sgd":
        nesterov = options.nesterov and options.momentum > 0
        return without_compiler(torch.optim.SGD)(parameters, momentum=options.momentum, nesterov=nesterov, **how)
    kind = torch.optim.Adam if options.name == "adam" else torch.optim.AdamW
    return without_compiler(kind)(parameters, betas=options.betas, **how)


@cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """An optimiser of torch with the same steps, but without what surrounds them for ``torch.compile``: on first use this
    imports all of torch's compiler, which takes as long as torch itself.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> sgd = without_compiler(torch.optim.SGD)([weight], lr=0.1)
    >>> weight.sum().backward(); _ = sgd.step(); weight.data
    tensor([0.9000])
    """
    plain = {name: unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "step")}
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(plain["step"])})


def optimizer_state(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """An optimiser's state for these parameters (velocities, moments, step counts), as ``"what name"``."""
    return {
        f"{what} {name}": value.detach().clone()
        for name, parameter in named
        for what, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]], memory: Mapping[str, Tensor]
) -> None:
    """Let an optimiser continue from a state that :func:`optimizer_state` returned.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> def step(memory):
    ...     adam = torch.optim.Adam([weight], lr=0.1)
    ...     restore_optimizer(adam, [("w", weight)], memory)
    ...     weight.grad = torch.ones(1)
    ...     adam.step()
    ...     return optimizer_state(adam, [("w", weight)])
    >>> sorted(step(step({})))
    ['exp_avg w', 'exp_avg_sq w', 'step w']
    >>> step(step({}))["step w"].item()
    2.0
    """
    parameters = dict(named)
    for key, value in memory.items():
        what, name = key.split(" ", 1)
        optimizer.state[parameters[name]][what] = value.clone() if what == "step" else value.to(parameters[name].device).clone()
