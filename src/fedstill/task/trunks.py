"""A frozen trunk's outputs, computed once and kept in files that every process maps, keyed by the trunk and the data."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedstill.core.streams import stream
from fedstill.data.augment import augment
from fedstill.data.cache import cache_folder, cached, forget
from fedstill.data.loading import Progress
from fedstill.data.samples import Domain, Samples
from fedstill.models.trunk import Top
from fedstill.training.options import Augment

__all__ = ["Kept", "Progress", "Views", "fingerprint", "through_trunk", "trunk_outputs"]

PIECE = 64  # samples between two reports of progress


@dataclass(frozen=True)
class Views:
    """Augmented versions of some domains' training samples, besides the samples themselves."""

    domains: Sequence[str]
    count: int
    augment: Augment


def through_trunk(
    domains: Mapping[str, Domain], top: Top | None, progress: Progress, views: Views | None = None
) -> dict[str, Domain]:
    """The domains with the trunk's outputs in place of raw samples; unchanged without a trunk."""
    if top is None:
        return dict(domains)
    kept = trunk_outputs(top, progress)

    def trained(name: str, samples: Samples) -> Samples:
        found = kept(f"{name} train", samples)
        if views is None or name not in views.domains or not views.count or not len(samples):
            return found
        others = [kept(f"{name} train, view {k + 1}", samples, (k, views.augment)).x for k in range(views.count)]
        return replace(found, views=torch.stack(others, 1))

    return {
        name: replace(
            domain,
            train=trained(name, domain.train),
            test=kept(f"{name} test", domain.test),
            whole=None if domain.whole is None else kept(f"{name} all", domain.whole),
        )
        for name, domain in domains.items()
    }


class Kept(Protocol):
    """Maps samples, with their name, to a trunk's outputs with the same labels; a view is given by its number and kind."""

    def __call__(self, name: str, samples: Samples, view: tuple[int, Augment] | None = None) -> Samples: ...


def trunk_outputs(top: Top, progress: Progress = lambda what, done, of: None) -> Kept:
    """A trunk's outputs for samples, computed once."""
    trunk = fingerprint(*(tensor for _, tensor in sorted(top.trunk_state.items())))
    size = top.whole.input_shape  # where images are resized first, other sizes are other outputs
    about = json.dumps([trunk, top.cut, top.whole.mean, top.whole.std, *([size] if size is not None else [])])

    def kept(name: str, samples: Samples, view: tuple[int, Augment] | None = None) -> Samples:
        return Samples(_outputs(top, about, name, samples.x, progress, view), samples.y) if len(samples) else samples

    return kept


def _outputs(top: Top, about: str, name: str, x: Tensor, progress: Progress, view: tuple[int, Augment] | None = None) -> Tensor:
    key = {"what": "trunk", "trunk": about, "data": fingerprint(x)}
    if view is not None:
        key["view"] = json.dumps([view[0], view[1].flip, view[1].crop])

    def make() -> tuple[dict[str, Tensor], dict[str, str]]:
        # views are the same for every seed, so that runs share them
        seen = x if view is None else augment(x, view[1].flip, view[1].crop, stream(0, "view", view[0]))
        parts = []
        for first in range(0, len(x), PIECE):
            parts.append(top.trunk(seen[first : first + PIECE]).float().cpu())
            progress(f"features of {name}", min(first + PIECE, len(x)), len(x))
        found = torch.cat(parts).contiguous()
        return {"x": found}, {"check": fingerprint(found)}

    folder = cache_folder()
    tensors, facts = cached(key, folder, make, f"features-{name}")
    if fingerprint(tensors["x"]) != facts.get("check"):
        warnings.warn(f"kept features of {name} were damaged and are computed again", stacklevel=2)
        forget(key, folder, f"features-{name}")
        tensors, _ = cached(key, folder, make, f"features-{name}")
    return tensors["x"]


def fingerprint(*tensors: Tensor) -> str:
    """A digest of tensors' types, shapes and bytes.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2)) != fingerprint(torch.zeros(1, 2))
    True
    """
    mark = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        mark.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():
            mark.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return mark.hexdigest()
