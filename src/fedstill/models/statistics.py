"""BatchNorm statistics. They are not weights: averaging or distilling without regard to them quietly ruins a model."""

from __future__ import annotations

import torch
from torch import nn

from fedstill.data.samples import Samples
from fedstill.models.layers import BatchNorm
from fedstill.models.network import Network

__all__ = ["buffer_names", "freeze_statistics", "recalibrate", "without_dropout"]


def buffer_names(network: nn.Module) -> set[str]:
    """The names of the network's buffers that are part of its state (running means, variances, counters).

    >>> sorted(buffer_names(nn.BatchNorm1d(2)))
    ['num_batches_tracked', 'running_mean', 'running_var']
    """
    return set(network.state_dict()) - {name for name, _ in network.named_parameters()}


def recalibrate(network: Network, samples: Samples, batch_size: int = 256) -> Network:
    """Re-estimate the running statistics, as plain averages over ``samples``; the weights do not change."""
    layers = [module for module in network.modules() if isinstance(module, BatchNorm) and module.track_running_stats]
    if not layers:
        return network
    kept = [(layer, layer.momentum) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average
    was_training = network.training
    network.eval()
    for layer in layers:
        layer.train()
    device = next(network.parameters()).device
    with torch.no_grad():
        # batches of equal size, since each counts alike, and of mixed samples: a pool may come sorted by class or domain
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
        for index in order.chunk(-(-len(samples) // batch_size)):
            if len(index) > 1:
                network(network.normalise(samples.x[index].to(device)))
    for layer, momentum in kept:
        layer.momentum = momentum
    network.train(was_training)
    return network


def freeze_statistics(network: nn.Module) -> None:
    """Put every BatchNorm layer in eval mode: it normalises by its running statistics and leaves them alone."""
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.eval()


def without_dropout(network: nn.Module) -> None:
    """Put every dropout layer in eval mode, in which it does nothing.

    >>> network = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2)).train()
    >>> without_dropout(network)
    >>> [layer.training for layer in network]
    [False, True]
    """
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
