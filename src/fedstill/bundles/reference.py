"""The reference backbone: one network that all sites and the centre have, so that descriptions of domains can be compared.

It is named by a built-in model, then with the weights of a fixed seed (``cnn-small``), by a built-in model and a file of
pretrained weights (``resnet18=imagenet.safetensors``), by a bundle, or by the folder of a fused model.
"""

from __future__ import annotations

from pathlib import Path

from fedstill.bundles.bundle import Subspace, read_bundle
from fedstill.bundles.folder import read_fused
from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError, unknown
from fedstill.models import build, load_weights, names
from fedstill.models.network import Network

__all__ = ["DEFAULT", "load_reference", "reference_id"]

DEFAULT = "cnn-small"
SHAPE = (3, 32, 32)  # what a reference that is a built-in model looks at; images of any size are brought to it


def load_reference(spec: str) -> Network:
    """The network that ``spec`` names.

    >>> load_reference("cnn-small").feature_dim
    64
    """
    place = Path(spec)
    if place.is_dir():
        return read_fused(place).network()
    if place.is_file():
        return read_bundle(place).network()
    name, _, weights = spec.partition("=")
    if name not in names():
        raise unknown("reference (a model, MODEL=FILE, a bundle or a fused folder)", spec, names())
    if weights and not Path(weights).is_file():
        raise FedstillError(f"reference '{spec}': no such file of weights: {weights}")
    network = build(name, classes=1, shape=SHAPE, seed=0)
    network.input_shape = SHAPE
    if weights:
        load_weights(network, weights)
    return network.eval()


def reference_id(spec: str, network: Network) -> Subspace:
    """What a bundle says of the reference: its name without folders, and a digest of the backbone (the head does not matter)."""
    backbone = {key: tensor for key, tensor in network.state_dict().items() if not key.startswith("head.")}
    name, equals, weights = spec.partition("=")
    plain = Path(spec).name if not equals else f"{name}={Path(weights).name}"
    return Subspace(reference=plain, digest=digest(backbone))
