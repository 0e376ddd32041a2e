"""Text as rows of token ids, with a tokenizer that needs no shared vocabulary."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.options import Part, Positive

__all__ = ["TextOptions", "tokenize"]

_WORD = re.compile(r"\w+|[^\w\s]")


class TextOptions(Part):
    """How text becomes token ids."""

    length: Positive = 64
    """Tokens of a sample; longer texts are cut, shorter ones padded."""

    vocab: Annotated[int, Field(ge=2)] = 8192
    """Number of token ids that words are hashed to, and the vocabulary of the model ``text-small``."""

    tokenizer: str = "hash"
    """``hash``: each lower-cased word or punctuation mark is hashed, so that clients need no common vocabulary. ``hf:NAME``: a
    tokenizer of the Hugging Face Hub or of a local folder."""

    @field_validator("tokenizer")
    @classmethod
    def _known(cls, value: str) -> str:
        if value != "hash" and not re.match(r"hf:.", value):
            raise ValueError("a tokenizer is 'hash' or 'hf:NAME', such as 'hf:distilbert-base-uncased'")
        return value


def tokenize(texts: Sequence[str], options: TextOptions) -> Tensor:
    """Token ids ``(n, length)`` as int32; longer texts are cut, shorter ones end in 0 (the padding).

    >>> ids = tokenize(["Good, good film", "bad"], TextOptions(length=5))
    >>> ids.shape, bool(ids[0, 0] == ids[0, 2]), ids[1, 1:].tolist()
    (torch.Size([2, 5]), True, [0, 0, 0, 0])
    """
    if options.tokenizer.startswith("hf:"):
        return _pretrained(options.tokenizer[3:], texts, options.length)
    rows = np.zeros((len(texts), options.length), dtype=np.int32)
    token_id = lru_cache(maxsize=1 << 16)(lambda word: 1 + zlib.crc32(word.encode()) % (options.vocab - 1))
    for row, text in zip(rows, texts, strict=True):
        ids = [token_id(word) for word in _WORD.findall(text.lower())[: options.length]]
        row[: len(ids)] = ids
    return torch.from_numpy(rows)


def _pretrained(name: str, texts: Sequence[str], length: int) -> Tensor:
    try:
        from transformers import AutoTokenizer  # optional: an extra
    except ImportError as error:
        raise FedstillError(f"tokenizer 'hf:{name}' needs transformers: pip install 'fedstill[text]'") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise FedstillError(f"no tokenizer at 'hf:{name}' (neither a local folder nor reachable on the Hub)") from error
    encoded = tokenizer(list(texts), truncation=True, padding="max_length", max_length=length)
    # Models of ours read 0 as padding; a tokenizer that pads with another id changes places with it.
    ids = torch.tensor(encoded["input_ids"], dtype=torch.int32)
    pad = tokenizer.pad_token_id
    if pad in (None, 0):
        return ids
    return torch.where(ids == pad, 0, torch.where(ids == 0, pad, ids))
