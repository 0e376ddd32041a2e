"""False updates, for experiments on robustness: what a malicious client sends in place of its trained weights."""

from __future__ import annotations

import torch

from fedstill.core.message import Message

__all__ = ["false_update"]


def false_update(reply: Message, received: Message, kind: str, scale: float, rng: torch.Generator) -> Message:
    """``sign-flip``: the update mirrored, ``w_global - scale * (w - w_global)``; ``gaussian``: weights moved by noise of
    ``scale`` times each tensor's own deviation. Every floating tensor of the reply changes.

    >>> honest, received = Message.of(model={"w": torch.tensor([3.0])}), Message.of(model={"w": torch.tensor([1.0])})
    >>> lie = false_update(honest, received, "sign-flip", 1.0, torch.Generator())
    >>> lie.tensors["model/w"].tolist()
    [-1.0]
    """
    tensors = {}
    for name, tensor in reply.tensors.items():
        if not tensor.is_floating_point() or name.endswith("running_var"):
            tensors[name] = tensor
            continue
        anchor = received.tensors.get(name)
        anchor = torch.zeros_like(tensor) if anchor is None or anchor.shape != tensor.shape else anchor
        if kind == "sign-flip":
            tensors[name] = anchor - scale * (tensor - anchor)
        else:
            spread = tensor.std() if tensor.numel() > 1 else tensor.abs().mean()
            tensors[name] = anchor + scale * spread * torch.randn(tensor.shape, generator=rng).to(tensor.device)
    return Message(tensors, reply.values)
