"""The reference backbone: one network that all sites and the centre have, so that descriptions of domains can be compared.

A reference is the name of a built-in model, with its packaged weights (``efficientnet-lite0``) or, if there are none, the weights
of a fixed seed (``cnn-small``); a built-in model and a file of pretrained weights (``resnet18=imagenet.safetensors``); a bundle;
or the folder of a fused model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from fedstill.bundles.bundle import Subspace, read_bundle
from fedstill.bundles.folder import read_fused
from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError, unknown
from fedstill.data.samples import Samples
from fedstill.models import build, load_weights, names
from fedstill.models.network import Network
from fedstill.models.predict import apply
from fedstill.models.pretrained import PRETRAINED, installed
from fedstill.models.trunk import Top, cut_of
from fedstill.task.trunks import Progress, trunk_outputs

__all__ = ["DEFAULT", "PHOTOS", "default_reference", "load_reference", "reference_features", "reference_id"]

DEFAULT = "cnn-small"
PHOTOS = "efficientnet-lite0"
SMALLEST_PHOTO = 64  # pixels: a small network describes digits and the like well, and much faster
# the input shape of a built-in reference, from scratch or pretrained; images of any size are resized to it
SHAPE, PRETRAINED_SHAPE = (3, 32, 32), (3, 160, 160)


def default_reference(shape: Sequence[int]) -> str:
    """The default reference: for photographs the pretrained one, if its package is installed.

    >>> default_reference([1, 28, 28])
    'cnn-small'
    """
    return PHOTOS if len(shape) == 3 and min(shape[1:]) >= SMALLEST_PHOTO and installed(PHOTOS, "imagenet") else DEFAULT


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
    packaged = weights or next(iter(PRETRAINED.get(name, {})), "")
    if packaged in PRETRAINED.get(name, {}):
        network = build(name, classes=1, shape=PRETRAINED_SHAPE, seed=0, weights=packaged)
        network.input_shape = PRETRAINED_SHAPE
        return network.eval()
    if weights and not Path(weights).is_file():
        raise FedstillError(f"reference '{spec}': no such file of weights: {weights}")
    network = build(name, classes=1, shape=SHAPE, seed=0)
    network.input_shape = SHAPE
    if weights:
        load_weights(network, weights)
    return network.eval()


def reference_features(
    spec: str, network: Network, samples: Samples, name: str, progress: Progress
) -> Callable[[Tensor], Tensor]:
    """The features of the samples at an index. Those of a pretrained reference are computed once and cached."""
    if spec.partition("=")[0] not in PRETRAINED:
        return lambda index: apply(network.features, network, samples.take(index))
    kept = trunk_outputs(Top(network, cut_of(network, "head")), progress)(name, samples)
    return lambda index: kept.x[index]


def reference_id(spec: str, network: Network) -> Subspace:
    """What a bundle says about the reference: its name without folders, and a digest of the backbone (without the head)."""
    backbone = {key: tensor for key, tensor in network.state_dict().items() if not key.startswith("head.")}
    name, equals, weights = spec.partition("=")
    plain = Path(spec).name if not equals else f"{name}={Path(weights).name}"
    return Subspace(reference=plain, digest=digest(backbone))
