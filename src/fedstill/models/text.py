"""Classifiers of token ids (n, length): a small transformer from scratch, and Hugging Face encoders."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError, first_line, unknown

from .network import Architecture, Network

__all__ = ["ARCHITECTURES", "Pretrained", "TextTransformer", "from_transformers", "pool_tokens", "text_small"]


def pool_tokens(hidden: Tensor, mask: Tensor, pool: str) -> Tensor:
    """One vector a text from token vectors (n, length, d): the first, or the mean over tokens where ``mask`` is true.

    >>> hidden = torch.tensor([[[1.0], [3.0], [9.0]]])
    >>> pool_tokens(hidden, torch.tensor([[True, True, False]]), "mean").item()
    2.0
    """
    if pool == "first":
        return hidden[:, 0]
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)


def _check_pool(pool: str) -> None:
    if pool not in ("first", "mean"):
        raise unknown("pool", pool, ["first", "mean"])


class TextTransformer(Network):
    """An encoder after Vaswani et al. 2017 (arXiv:1706.03762), normalised first, with learned positions.

    Id 0 is padding: it is not attended to and not pooled.
    """

    def __init__(
        self, classes: int, length: int, vocab: int, width: int, layers: int, heads: int, dropout: float, pool: str
    ) -> None:
        super().__init__()
        self.pool = pool
        self.tokens = nn.Embedding(vocab, width, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        with torch.no_grad():
            self.tokens.weight.mul_(1 / math.sqrt(width))  # rows of unit length, so that positions are not drowned
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.feature_dim, self.classes = width, classes
        self.head = nn.Linear(width, classes)

    def backbone(self, x: Tensor) -> Tensor:
        mask = x != 0
        # A text of padding alone still needs one token to attend to: without it, attention divides zero by zero.
        hidden_from = ~mask
        hidden_from[:, 0] = False
        hidden = self.dropout(self.tokens(x) + self.positions[: x.shape[1]])
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=hidden_from)
        return pool_tokens(self.norm(hidden), mask, self.pool)


def text_small(
    *,
    classes: int,
    shape: tuple[int, ...],
    norm: str,
    vocab: int = 8192,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    dropout: float = 0.1,
    pool: str = "mean",
) -> Network:
    """A transformer that trains on a CPU; ``shape`` is (length,) and ids lie in [0, vocab)."""
    if len(shape) != 1:
        raise FedstillError(f"model 'text-small' takes token ids of shape (length,), not {shape}")
    if width % heads:
        raise FedstillError(f"heads = {heads} does not divide width = {width}")
    _check_pool(pool)
    return TextTransformer(classes, shape[0], vocab, width, layers, heads, dropout, pool)


class Pretrained(Network):
    """A Hugging Face encoder; ids equal to its padding id are masked."""

    def __init__(self, encoder: Any, classes: int, padding: int, pool: str) -> None:
        super().__init__()
        self.encoder, self.padding, self.pool = encoder, padding, pool
        self.feature_dim, self.classes = int(encoder.config.hidden_size), classes
        self.head = nn.Linear(self.feature_dim, classes)

    def backbone(self, x: Tensor) -> Tensor:
        mask = x != self.padding
        hidden = self.encoder(input_ids=x, attention_mask=mask.long()).last_hidden_state
        return pool_tokens(hidden, mask, self.pool)


def from_transformers(
    name: str, *, classes: int, shape: tuple[int, ...], norm: str, pool: str = "first", pretrained: bool = True
) -> Network:
    """The encoder ``hf:NAME_OR_FOLDER``, such as hf:distilbert-base-uncased; without ``pretrained`` only its shape."""
    if norm != "batch":
        raise FedstillError(f"model '{name}' has its own normalisation, and norm = '{norm}' was asked for")
    if len(shape) != 1:
        raise FedstillError(f"model '{name}' takes token ids of shape (length,), not {shape}")
    _check_pool(pool)
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise FedstillError(f"model '{name}' needs transformers: pip install 'fedstill[text]'") from error
    source = name.removeprefix("hf:")
    try:
        if pretrained:
            encoder = transformers.AutoModel.from_pretrained(source)
        else:
            encoder = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(source))
    except (OSError, ValueError) as error:
        raise FedstillError(f"model '{name}': no encoder could be loaded: {first_line(error)}") from error
    longest = getattr(encoder.config, "max_position_embeddings", shape[0])
    if shape[0] > longest:
        raise FedstillError(f"model '{name}' takes at most {longest} tokens, not {shape[0]}")
    padding = encoder.config.pad_token_id
    return Pretrained(encoder.train(), classes, 0 if padding is None else padding, pool)


ARCHITECTURES = {
    "text-small": Architecture(text_small, "small transformer encoder (after Vaswani et al. 2017)", norms=(), smallest=1)
}
