"""DP-SGD: gradients that are clipped sample by sample and noised (Abadi et al., CCS 2016).

A step takes each of the n samples with probability ``q = batch_size / n`` (Poisson sampling) and moves the weights along

    g = ( sum_i g_i min(1, C / |g_i|)  +  N(0, (noise C)^2 I) ) / (q n)  +  g_0                                       (1)

where g_i is the gradient of sample i's loss over all trained weights, C is ``max_grad_norm``, and g_0 the gradient of terms that
use no sample of the client. The division is by the *expected* size of a batch, since the size itself tells of the data. Opacus'
hooks compute the g_i; those of linear layers are kept as the two vectors whose product they are (:class:`Outer`). What follows
(momentum, weight decay, Adam) is post-processing.
"""

from __future__ import annotations

import contextlib
import functools
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
from fedstill.models.layers import BatchNorm
from fedstill.models.network import Network

__all__ = [
    "DPSGD",
    "Outer",
    "Pause",
    "check_network",
    "check_sums",
    "forget",
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


@dataclass(frozen=True)
class Outer:
    """The gradients by sample of a linear layer's weight, ``g_i = b_i a_i'`` with inputs a_i and slopes b_i of the output. Their
    lengths and weighted sums need only these vectors (Goodfellow, 2015), which are much smaller than the gradients.

    >>> found = Outer(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.tensor([[2.0], [1.0]]))
    >>> found.squares().tolist(), found.summed(torch.tensor([1.0, 10.0])).tolist()
    ([20.0, 9.0], [[2.0], [34.0]])
    """

    slopes: Tensor  # (n, out)
    inputs: Tensor  # (n, in)

    def squares(self) -> Tensor:
        """``|g_i|^2`` for every sample: ``|b_i|^2 |a_i|^2``."""
        return self.slopes.square().sum(1) * self.inputs.square().sum(1)

    def summed(self, factors: Tensor) -> Tensor:
        """``sum_i f_i g_i``."""
        return (self.slopes * factors[:, None]).T @ self.inputs

    def without(self, broken: Tensor) -> Outer:
        """With zeros in place of the samples that are marked."""
        kept = ~broken[:, None]
        return Outer(*(torch.where(kept, side, 0.0) for side in (self.slopes, self.inputs)))

    def whole(self) -> Tensor:
        """The gradients themselves (n, out, in)."""
        return self.slopes[:, :, None] * self.inputs[:, None, :]


@dataclass(frozen=True)
class Stacked:
    """The gradients by sample of any parameter, one below the other: (n, ...)."""

    gradients: Tensor

    def squares(self) -> Tensor:
        """``|g_i|^2`` for every sample."""
        return self.gradients.flatten(1).square().sum(1)

    def summed(self, factors: Tensor) -> Tensor:
        """``sum_i f_i g_i``."""
        found: Tensor = torch.tensordot(factors, self.gradients, dims=1)
        return found

    def without(self, broken: Tensor) -> Stacked:
        """With zeros in place of the samples that are marked."""
        found = self.gradients.clone()
        found[broken] = 0.0
        return Stacked(found)

    def whole(self) -> Tensor:
        """The gradients themselves."""
        return self.gradients


BySample = Outer | Stacked
Pause = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def with_sample_gradients(network: nn.Module) -> Iterator[Pause]:
    """While open, a backward pass leaves each trained parameter's gradients by sample in its ``grad_sample``, except in the
    context that is returned."""
    need_privacy("privacy.sample")
    written_over = [module for module in network.modules() if getattr(module, "inplace", False)]
    convolutions = [module for module in network.modules() if isinstance(module, nn.modules.conv._ConvNd)]
    # Opacus reads a convolution's inputs as if they were in PyTorch's usual memory order, which ours are not
    handles = [module.register_forward_pre_hook(lambda _, given: (given[0].contiguous(),)) for module in convolutions]
    for module in written_over:  # a hook's output cannot be written over
        module.inplace = False  # type: ignore[assignment]
    hooked = None
    try:
        hooked = _hooks()(network)
        handles += [layer.register_forward_hook(partial(_listen, hooked)) for layer in hooked.linear]
        with warnings.catch_warnings():
            # of the first layer, whose input needs no gradient; and of layers whose samples are taken one by one
            warnings.filterwarnings("ignore", message=".*ackward hook.*|.*CPU autocast.*|There is a performance drop")
            yield partial(_paused, hooked)
    finally:
        for handle in handles:
            handle.remove()
        for module in written_over:
            module.inplace = True  # type: ignore[assignment]
        if hooked is not None:
            hooked.remove_hooks()
        for thing in [*network.parameters(), *network.modules()]:  # the network is used again, and copied
            for name in ("grad_sample", "_forward_counter", "_current_grad_sample", "activations", "max_batch_len"):
                if name in vars(thing):
                    delattr(thing, name)


@functools.cache
def _hooks() -> Any:
    """Opacus' hooks for all layers of a network but those in ``linear``."""
    from opacus.grad_sample import GradSampleModule  # optional, and slow to import

    class Hooks(GradSampleModule):  # type: ignore[misc]  # it has no types
        def __init__(self, network: nn.Module):
            self.linear: dict[nn.Linear, None] = {}
            super().__init__(network, batch_first=True, loss_reduction="mean", strict=True)

        def iterate_submodules(self, module: nn.Module) -> Iterator[nn.Module]:
            for one in super().iterate_submodules(module):
                if type(one) is nn.Linear:
                    self.linear[one] = None
                else:
                    yield one

    return Hooks


def _listen(hooked: Any, layer: nn.Linear, given: tuple[Tensor, ...], output: Tensor) -> None:
    """After a forward pass through a linear layer: wait for the slopes of its output."""
    if hooked.hooks_enabled and output.requires_grad:
        output.register_hook(partial(_keep, layer, given[0].detach()))


def _keep(layer: nn.Linear, inputs: Tensor, slopes: Tensor) -> None:
    """Keep the gradients by sample of a linear layer, given the slopes of the mean of the samples' losses."""
    slopes = len(inputs) * slopes.detach()
    if layer.weight.requires_grad:
        flat = inputs.dim() == 2
        _add(layer.weight, Outer(slopes, inputs) if flat else Stacked(torch.einsum("n...i,n...j->nij", slopes, inputs)))
    if layer.bias is not None and layer.bias.requires_grad:
        _add(layer.bias, Stacked(torch.einsum("n...i->ni", slopes)))


def _add(parameter: Tensor, found: BySample) -> None:
    before = _by_sample(parameter)  # of another pass through the same layer
    whole = found if before is None else Stacked(before.whole() + found.whole())
    parameter.grad_sample = whole  # type: ignore[attr-defined]


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
    found, factors = _finite_and_clipped(found, how.max_grad_norm)
    for place, (parameter, gradients) in enumerate(zip(parameters, found, strict=True)):
        noise = torch.randn(parameter.shape, generator=how.rng) * (how.noise * how.max_grad_norm)
        total = noise.to(parameter)
        if gradients is not None and factors is not None:
            total += gradients.summed(factors)
        parameter.grad = total / expected
        extra = free[place] if free is not None else None
        if extra is not None:
            parameter.grad += extra


def forget(network: nn.Module) -> None:
    """Drop all gradients by sample, so that the next batch's are not added to them."""
    for parameter in network.parameters():
        parameter.grad_sample = None  # type: ignore[attr-defined]


def _by_sample(parameter: Tensor) -> BySample | None:
    """A parameter's gradients by sample; None if there was no backward pass through it."""
    found = getattr(parameter, "grad_sample", None)
    if found is None or isinstance(found, Outer | Stacked):
        return found
    return Stacked(torch.cat(list(found)) if isinstance(found, list) else found)


def _finite_and_clipped(found: list[BySample | None], most: float) -> tuple[list[BySample | None], Tensor | None]:
    """The gradients of all parameters, and ``min(1, C / |g_i|)`` for every sample i. A gradient that is not finite has no
    direction: it becomes zero."""
    present = [one for one in found if one is not None]
    if not present:
        return found, None
    squares = torch.stack([one.squares() for one in present]).sum(0)
    broken = ~torch.isfinite(squares)
    if bool(broken.any()):
        found = [None if one is None else one.without(broken) for one in found]
        squares = torch.where(broken, 0.0, squares)
    return found, most / squares.sqrt().clamp(min=most)


def check_sums(named: Sequence[tuple[str, nn.Parameter]], samples: int) -> None:
    """Refuse a network whose gradients by sample do not add up to its gradient, a layer that Opacus does not cover, and one that
    makes more or fewer rows of the ``samples``, whose gradients would be taken for those of samples."""
    for name, parameter in named:
        if parameter.grad is None:
            continue
        found = _by_sample(parameter)
        mean = torch.zeros_like(parameter.grad)
        if found is not None:
            each = found.squares()
            if len(each) != samples:
                raise FedstillError(f"privacy.sample: '{name}' sees {len(each)} rows of {samples} samples, and cannot be clipped")
            mean = found.summed(torch.full_like(each, 1 / len(each)))
        gap, size = (mean - parameter.grad).norm(), parameter.grad.norm()
        if not bool(gap <= 1e-3 * size + 1e-5) and bool(torch.isfinite(size)):
            raise FedstillError(f"privacy.sample: Opacus cannot tell the gradients of single samples in '{name}'")


def check_network(network: Network, name: str, example: Tensor) -> None:
    """Refuse a network whose samples cannot be told apart, before any client trains. ``example`` holds two raw samples."""
    if any(isinstance(module, BatchNorm) for module in network.modules()):
        raise FedstillError(
            f"privacy.sample: BatchNorm in '{name}' mixes the samples of a batch: set model.norm = \"group\" or another network",
            setting='model.norm="group"',
        )
    network.train()
    try:
        with with_sample_gradients(network):
            x = network.normalise(example.to(next(network.parameters()).device))
            network(x).square().sum(1).mean().backward()
            check_sums([(key, p) for key, p in network.named_parameters() if p.requires_grad], len(x))
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        if "random operation" in str(error):
            raise FedstillError(
                f"privacy.sample: '{name}' takes samples one by one, which needs model.options = {{ dropout = 0 }}"
            ) from error
        raise FedstillError(f"privacy.sample: '{name}' has no gradients of single samples: {first_line(error, 120)}") from error
    finally:
        network.zero_grad(set_to_none=True)
