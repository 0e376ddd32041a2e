"""The discriminator of a bundle: DaFKD's Eq. 2 on images that are not the site's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedstill.bundles.bundle import read_bundle
from fedstill.bundles.fuse import fuse
from fedstill.bundles.pack import pack
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.local.reports.discriminator import DECAY, discriminator_for, distorted
from fedstill.models.network import Network

from .sites import SHAPE, blobs, write_folder


class Raw(Network):
    """Its features are its inputs."""

    def __init__(self, width: int):
        super().__init__()
        self.feature_dim, self.classes, self.head = width, 2, nn.Linear(width, 2)

    def backbone(self, x: Tensor) -> Tensor:
        return x


def test_it_is_where_the_loss_is_flat() -> None:
    """At the minimum the gradient of Eq. 2 with its decay is zero, in the standardised features it was learned in."""
    rng = torch.Generator().manual_seed(0)
    own, others = torch.randn(50, 3, generator=rng) * 4 + 1, torch.randn(200, 3, generator=rng) * 4
    state = discriminator_for(Raw(3), Samples(own), Samples(others))
    both = torch.cat([own, others]).double()
    centre, spread = both.mean(0), both.std(0)
    weight = (state["head.weight"][0].double() * spread).requires_grad_()
    bias = (state["head.bias"][0].double() + state["head.weight"][0].double() @ centre).requires_grad_()
    said = [(x.double() - centre) / spread @ weight + bias for x in (own, others)]
    # each kind is averaged by itself, so four times as many others count no more
    loss = -torch.sigmoid(said[0]).log().mean() - (1 - torch.sigmoid(said[1])).log().mean() + DECAY * weight.square().sum()
    loss.backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-4
    assert float(bias.grad.abs()) < 1e-4


def test_it_tells_the_sites_images_from_others() -> None:
    own, others = torch.randn(60, 4) + 3, torch.randn(60, 4) - 3
    state = discriminator_for(Raw(4), Samples(own), Samples(others))
    said = lambda x: x @ state["head.weight"][0] + state["head.bias"]
    assert bool((said(own) > 0).all())
    assert bool((said(others) < 0).all())
    assert bool(torch.isfinite(state["head.weight"]).all())


def test_distortions_differ_from_the_images() -> None:
    samples = blobs(range(3), 40, 0)
    made = distorted(samples, torch.Generator().manual_seed(0)).x
    assert made.shape == samples.x.shape
    assert made.dtype == torch.uint8
    assert bool((made != samples.x).flatten(1).any(1).all())


def test_each_sample_listens_to_the_site_that_it_looks_like(tmp_path: Path) -> None:
    """Two sites whose images differ in brightness: on each one's images its own teacher weighs more."""
    looks = {"dark": lambda x: x // 2, "light": lambda x: 128 + x // 2}
    images = {
        name: Samples(look(blobs(range(3), 90, i).x), blobs(range(3), 90, i).y) for i, (name, look) in enumerate(looks.items())
    }
    bundles = []
    for name, other in (("dark", "light"), ("light", "dark")):
        write_folder(tmp_path / name, images[name], ["row0", "row1", "row2"])
        write_folder(tmp_path / other, images[other], ["row0", "row1", "row2"])
        words = {"model": "mlp", "epochs": 3, "lr": 0.1, "describe": ["discriminator"], "against": tmp_path / other}
        bundles.append(pack(tmp_path / f"{name}.fed", data=tmp_path / name, **words).bundle)
    for name in looks:
        fused = fuse(bundles, images[name], weighting="discriminator", distillation={"steps": 1})
        assert fused.teachers[name] > 0.8


def test_a_program_has_no_features_to_look_at(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    torch.jit.save(torch.jit.script(module), str(tmp_path / "p.ts"))
    site = write_folder(tmp_path / "site", blobs(range(3), 30, 3), ["row0", "row1", "row2"])
    with pytest.raises(FedstillError, match="has no features"):
        pack(tmp_path / "a.fed", program=tmp_path / "p.ts", data=site, describe=["discriminator"])
    assert not (tmp_path / "a.fed").exists()
    packed = pack(tmp_path / "a.fed", program=tmp_path / "p.ts", data=site)
    assert read_bundle(packed.bundle.path).about.shape == list(SHAPE)
