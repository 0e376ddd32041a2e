"""DaFKD's weighting: each teacher counts as much as its own domain discriminator believes in the sample (Eq. 7)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

import fedstill.local.reports.discriminator  # noqa: F401 (registers the report for systems that train no discriminator of their own)
from fedstill.core.message import State
from fedstill.core.options import Part, validated
from fedstill.fusion.weightings.contract import Scored, WeightingContext, weighting
from fedstill.local.adversarial import Discriminator
from fedstill.models.network import Network

__all__ = ["ByDiscriminator", "DiscriminatorOptions", "domain_score", "fault"]


def fault(part: State, width: int) -> str | None:
    """What is wrong with a discriminator for features of this width.

    >>> fault({"head.weight": torch.zeros(1, 3), "head.bias": torch.zeros(1)}, 4)
    "its 'discriminator' is for features of width 3, not 4"
    """
    weight, bias = part.get("head.weight"), part.get("head.bias")
    if weight is None or bias is None or weight.ndim != 2 or len(weight) != 1 or bias.shape != (1,):
        return "its 'discriminator' has no linear layer 'head' with one output"
    if weight.shape[1] != width:
        return f"its 'discriminator' is for features of width {weight.shape[1]}, not {width}"
    return None


class DiscriminatorOptions(Part):
    """``weighting_options`` of ``discriminator``; the defaults are Eq. 7 as printed."""

    score: Literal["probability", "odds"] = "probability"
    """``probability``: the discriminator's output f. ``odds``: f / (1 - f), which at Theorem 1's optimum is the ratio of the
    client's density to that of all clients. The odds distinguish clients even if every f is close to 0 or to 1."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the discriminators' logits: values above 1 make the teachers' weights more alike."""

    floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The least score of a teacher, so that noise is not divided by noise if every f is close to 0."""


def domain_score(logits: Tensor, options: DiscriminatorOptions) -> Tensor:
    """A teacher's scores of samples, from its discriminator's logits.

    >>> d = torch.tensor([0.0, -9.0])
    >>> [round(s, 3) for s in domain_score(d, DiscriminatorOptions()).tolist()]
    [0.5, 0.0]
    >>> [round(s, 3) for s in domain_score(d, DiscriminatorOptions(temperature=3, floor=0.1)).tolist()]
    [0.5, 0.1]
    """
    scaled = logits / options.temperature
    found = scaled.clamp(-30, 30).exp() if options.score == "odds" else torch.sigmoid(scaled)
    return found.clamp_min(options.floor) if options.floor else found


@weighting(
    "discriminator",
    report="discriminator",
    options=DiscriminatorOptions,
    fault=fault,
    summary="each teacher's own domain discriminator (DaFKD, Eq. 7)",
)
class ByDiscriminator(Scored):
    """Eq. 7: ``f(theta_k; x) / sum_j f(theta_j; x)``, on generated or any other samples."""

    def __init__(self, context: WeightingContext):
        self.options: DiscriminatorOptions = validated(DiscriminatorOptions, context.options, "algorithm.weighting_options")
        self.replies = context.replies
        self.loaded: tuple[int, Discriminator] | None = None  # streamed, as the teachers are

    def score(self, k: int, network: Network, x: Tensor, features: Tensor) -> Tensor:
        """``f(theta_k; x)``: the probability that ``x`` is from client k's data, as modified by the options."""
        if self.loaded is None or self.loaded[0] != k:
            state = self.replies[k].part("discriminator")
            self.loaded = k, Discriminator(network, state, sharing=len(state) == 2).eval()
        return domain_score(self.loaded[1](x, features), self.options)
