"""DP-SGD: gradients that are clipped sample by sample and noised (Abadi et al., CCS 2016).

A step takes each of the n samples with probability ``q = batch_size / n`` (Poisson sampling) and moves the weights along

    g = ( sum_i g_i min(1, C / |g_i|)  +  N(0, (noise C)^2 I) ) / (q n)  +  g_0                                       (1)

where g_i is the gradient of sample i's loss over all trained weights, C is ``max_grad_norm``, and g_0 the gradient of terms that
use no sample of the client. The division is by the *expected* size of a batch, since the size itself tells of the data. Opacus'
hooks compute the g_i. What follows (momentum, weight decay, Adam) is post-processing.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.accounting import need_privacy
from fedstill.core.errors import FedstillError, first_line
from fedstill.models.network import Network

__all__ = [
    "DPSGD",
    "Pause",
    "check_network",
    "check_sums",
    "poisson_batches",
    "privatise",
    "sampling_rate",
    "with_sample_gradients",
]


@dataclass(frozen=True)
class DPSGD:
    """How gradients are made private. ``rng`` draws the batches and the noise."""

    noise: float
    max_grad_norm: float
    rng: torch.Generator


def sampling_rate(samples: int, batch_size: int) -> float:
    """The probability q with which a sample is in a batch.

    >>> sampling_rate(200, 50), sampling_rate(20, 50)
    (0.25, 1.0)
    """
    return min(1.0, batch_size / samples)


def poisson_batches(samples: int, batch_size: int, steps: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Index batches of which every sample is a member with the same probability, independently; a batch may be empty.

    >>> [len(b) for b in poisson_batches(4, 4, 2, torch.Generator())]
    [4, 4]
    """
    rate = sampling_rate(samples, batch_size)
    for _ in range(steps):
        yield torch.nonzero(torch.rand(samples, generator=rng, dtype=torch.float64) < rate).flatten()


Pause = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def with_sample_gradients(network: nn.Module) -> Iterator[Pause]:
    """While open, a backward pass leaves each trained parameter's gradients by sample in its ``grad_sample``, except in the
    context that is returned."""
    need_privacy("privacy.sample")
    from opacus.grad_sample import GradSampleModule  # optional, and slow to import

    written_over = [module for module in network.modules() if getattr(module, "inplace", False)]
    convolutions = [module for module in network.modules() if isinstance(module, nn.modules.conv._ConvNd)]
    # Opacus reads a convolution's inputs as if they were in PyTorch's usual memory order, which ours are not
    ordered = [module.register_forward_pre_hook(lambda _, given: (given[0].contiguous(),)) for module in convolutions]
    for module in written_over:  # a hook's output cannot be written over
        module.inplace = False  # type: ignore[assignment]
    hooked = None
    try:
        hooked = GradSampleModule(network, batch_first=True, loss_reduction="mean", strict=True)
        with warnings.catch_warnings():
            # of the first layer, whose input needs no gradient; and of layers whose samples are taken one by one
            warnings.filterwarnings("ignore", message=".*ackward hook.*|.*CPU autocast.*|There is a performance drop")
            yield partial(_paused, hooked)
    finally:
        for handle in ordered:
            handle.remove()
        for module in written_over:
            module.inplace = True  # type: ignore[assignment]
        if hooked is not None:
            hooked.remove_hooks()
        for thing in [*network.parameters(), *network.modules()]:  # the network is used again, and copied
            for name in ("grad_sample", "_forward_counter", "_current_grad_sample", "activations", "max_batch_len"):
                if name in vars(thing):
                    delattr(thing, name)


@contextlib.contextmanager
def _paused(hooked: Any) -> Iterator[None]:
    hooked.disable_hooks()
    try:
        yield
    finally:
        hooked.enable_hooks()


def privatise(
    parameters: Sequence[nn.Parameter], how: DPSGD, expected: float, free: Sequence[Tensor | None] | None = None
) -> None:
    """Eq. 1: set every parameter's gradient from its gradients by sample. ``expected`` is q n, ``free`` the gradients g_0."""
    found = [_by_sample(parameter) for parameter in parameters]
    present = [gradients for gradients in found if gradients is not None]
    factors = _clip_factors(present, how.max_grad_norm) if present else None
    for place, (parameter, gradients) in enumerate(zip(parameters, found, strict=True)):
        noise = torch.randn(parameter.shape, generator=how.rng) * (how.noise * how.max_grad_norm)
        total = noise.to(parameter)
        if gradients is not None and factors is not None:
            total += torch.tensordot(factors, gradients, dims=1)
        parameter.grad = total / expected
        extra = free[place] if free is not None else None
        if extra is not None:
            parameter.grad += extra
        parameter.grad_sample = None  # type: ignore[attr-defined]


def _by_sample(parameter: nn.Parameter) -> Tensor | None:
    """A parameter's gradients by sample; None if there was no backward pass through it."""
    found = getattr(parameter, "grad_sample", None)
    if found is None:
        return None
    gradients: Tensor = torch.cat(list(found)) if isinstance(found, list) else found
    return gradients


def _clip_factors(gradients: Sequence[Tensor], most: float) -> Tensor:
    """``min(1, C / |g_i|)`` for every sample i. A gradient that is not finite has no direction: it becomes zero, in place."""
    squares = torch.stack([one.flatten(1).square().sum(1) for one in gradients]).sum(0)
    broken = ~torch.isfinite(squares)
    if bool(broken.any()):
        for one in gradients:
            one[broken] = 0.0
        squares = torch.where(broken, 0.0, squares)
    return most / squares.sqrt().clamp(min=most)


def check_sums(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse a network whose gradients by sample do not add up to its gradient: a layer that Opacus does not cover."""
    for name, parameter in named:
        if parameter.grad is None:
            continue
        found = _by_sample(parameter)
        mean = torch.zeros_like(parameter.grad) if found is None else found.mean(0)
        gap, size = (mean - parameter.grad).norm(), parameter.grad.norm()
        if not bool(gap <= 1e-3 * size + 1e-5) and bool(torch.isfinite(size)):
            raise FedstillError(f"privacy.sample: Opacus cannot tell the gradients of single samples in '{name}'")


def check_network(network: Network, name: str, example: Tensor) -> None:
    """Refuse a network whose samples cannot be told apart, before any client trains. ``example`` holds two raw samples."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        raise FedstillError(
            f"privacy.sample: BatchNorm in '{name}' mixes the samples of a batch: set model.norm = \"group\" or another network",
            setting='model.norm="group"',
        )
    network.train()
    try:
        with with_sample_gradients(network):
            x = network.normalise(example.to(next(network.parameters()).device))
            network(x).square().sum(1).mean().backward()
            check_sums([(key, p) for key, p in network.named_parameters() if p.requires_grad])
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        if "random operation" in str(error):
            raise FedstillError(
                f"privacy.sample: '{name}' takes samples one by one, which needs model.options = {{ dropout = 0 }}"
            ) from error
        raise FedstillError(f"privacy.sample: '{name}' has no gradients of single samples: {first_line(error, 120)}") from error
    finally:
        network.zero_grad(set_to_none=True)
