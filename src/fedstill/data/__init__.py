"""Domains in, tensors out: loading, partitions, shifts."""

from fedstill.data.loading import load_domain, load_domains
from fedstill.data.partition import Partition, partition
from fedstill.data.samples import Domain, Samples, hold_out, normalise, stratified
from fedstill.data.text import TextOptions

__all__ = [
    "Domain",
    "Partition",
    "Samples",
    "TextOptions",
    "hold_out",
    "load_domain",
    "load_domains",
    "normalise",
    "partition",
    "stratified",
]
