import zlib

import pytest
from pydantic import ValidationError

from fedstill.core.errors import FedstillError
from fedstill.data.text import TextOptions, tokenize


def test_hash_ids_are_stable_and_never_the_padding():
    ids = tokenize(["Don't stop", ""], TextOptions(length=6, vocab=100))
    words = ["don", "'", "t", "stop"]
    assert ids[0].tolist() == [1 + zlib.crc32(word.encode()) % 99 for word in words] + [0, 0]
    assert ids[1].tolist() == [0] * 6


def test_long_texts_are_cut():
    assert tokenize(["a b c d e"], TextOptions(length=3)).shape == (1, 3)


def test_options_are_checked():
    with pytest.raises(ValidationError, match="tokenizer"):
        TextOptions(tokenizer="bpe")


def test_a_missing_tokenizer_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FedstillError, match="hf:"):
        tokenize(["a"], TextOptions(tokenizer=f"hf:{tmp_path}/none"))
