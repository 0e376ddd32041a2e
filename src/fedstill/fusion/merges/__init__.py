"""Merges, which make the merged model that a student starts from: the contract, and the built-in ones."""

from fedstill.fusion.merges.average import (
    average,
    by_examples,
    merge_models,
    note_shares,
    uniform,
    weighted_sum,
    with_statistics,
)
from fedstill.fusion.merges.contract import MERGES, Merge, MergeName, make_merge, merge, merges

__all__ = [
    "MERGES",
    "Merge",
    "MergeName",
    "average",
    "by_examples",
    "make_merge",
    "merge",
    "merge_models",
    "merges",
    "note_shares",
    "uniform",
    "weighted_sum",
    "with_statistics",
]
