"""Domains in, tensors out: loading, partitions, shifts."""

from fedstill.data.arrays import Arrays
from fedstill.data.augment import augment
from fedstill.data.loaders import LOADERS, loader
from fedstill.data.loading import load_domain, load_domains
from fedstill.data.partition import Partition, partition
from fedstill.data.reading import Reading
from fedstill.data.samples import Domain, Samples, hold_out, normalise, stratified
from fedstill.data.shifts import flip_labels, shift_labels
from fedstill.data.text import TextOptions

__all__ = [
    "LOADERS",
    "Arrays",
    "Domain",
    "Partition",
    "Reading",
    "Samples",
    "TextOptions",
    "augment",
    "flip_labels",
    "hold_out",
    "load_domain",
    "load_domains",
    "loader",
    "normalise",
    "partition",
    "shift_labels",
    "stratified",
]
