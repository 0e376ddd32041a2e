"""Generators of samples for distillation: images, vectors, or features of the layer before the head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.core.errors import FedstillError, unknown
from fedstill.core.registry import Registry

from .layers import seeded

__all__ = ["GENERATORS", "Generator", "GeneratorKind", "build_generator", "describe_generator", "generator_kinds"]


class Generator(nn.Module):
    """Maps noise, and a label if ``conditional``, to samples of ``shape``. Images lie in [-1, 1], the normalised range. Vectors,
    which only some generators make, have no range.

    ``noise`` is the distribution of z: "normal" or "uniform" on [0, 1].

    >>> net = build_generator("conditional", classes=10, shape=(1, 28, 28), seed=0)
    >>> x, y = net.sample(5, torch.Generator().manual_seed(0))
    >>> x.shape, y.shape
    (torch.Size([5, 1, 28, 28]), torch.Size([5]))
    """

    conditional: ClassVar[bool] = True
    vectors: ClassVar[bool] = False  # whether it also makes vectors (width,)
    kind = ""  # the name and the options that it was built with
    options: Mapping[str, Any] = {}

    def __init__(self, classes: int, shape: tuple[int, ...], noise_dim: int, noise: str = "normal") -> None:
        super().__init__()
        if noise not in ("normal", "uniform"):
            raise unknown("noise", noise, ["normal", "uniform"])
        self.classes, self.shape, self.noise_dim, self.noise = classes, shape, noise_dim, noise

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """Samples for noise (n, noise_dim) and, if conditional, integer labels (n,)."""
        raise NotImplementedError

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Noise (n, noise_dim) from the given random stream, on the device of the network."""
        draw = torch.rand if self.noise == "uniform" else torch.randn
        # Drawn on the stream's own device, so that one seed gives the same noise on every other.
        return draw(n, self.noise_dim, generator=generator, device=generator.device).to(self.device)

    def sample(self, n: int, generator: torch.Generator, labels: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """``n`` samples and their labels, which are uniform unless given, and None if not conditional."""
        z = self.draw(n, generator)
        if not self.conditional:
            return self(z), None
        if labels is None:
            labels = torch.randint(self.classes, (n,), generator=generator, device=generator.device)
        labels = labels.to(self.device)
        return self(z, labels), labels

    def about(self) -> dict[str, Any]:
        """Its description in a file of weights: all that is needed to build it again."""
        made = {"generator": self.kind, "options": dict(self.options), "noise_dim": self.noise_dim}
        return {**made, "classes": self.classes, "shape": list(self.shape)}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def onehot(self, z: Tensor, y: Tensor | None) -> Tensor:
        if y is None:
            raise ValueError("a conditional generator needs labels")
        return F.one_hot(y, self.classes).to(z.dtype)


class ConditionalGenerator(Generator):
    """FedFTG's generator (Zhang et al. 2022, arXiv:2203.09249), which is also what the DaFKD paper describes.

    Label and noise are each embedded in ``width`` maps of a quarter of the resolution (64 in the paper; a step with 16 takes a
    ninth of the time), joined, and upsampled twice between convolutions. ``final_norm`` adds the BatchNorm without affine after
    tanh of the authors' code; images then leave [-1, 1].
    """

    def __init__(
        self,
        classes: int,
        shape: tuple[int, ...],
        noise_dim: int,
        noise: str = "normal",
        final_norm: bool = False,
        width: int = 64,
    ) -> None:
        super().__init__(classes, shape, noise_dim, noise)
        maps = width
        channels, height, width = shape
        half = (math.ceil(height / 2), math.ceil(width / 2))
        self.start = (maps, math.ceil(height / 4), math.ceil(width / 4))
        self.embed_noise = nn.Linear(noise_dim, math.prod(self.start))
        self.embed_label = nn.Linear(classes, math.prod(self.start))
        self.body = nn.Sequential(
            nn.BatchNorm2d(2 * maps),
            nn.Upsample(half),
            nn.Conv2d(2 * maps, 2 * maps, 3, padding=1),
            nn.BatchNorm2d(2 * maps),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Upsample((height, width)),
            nn.Conv2d(2 * maps, maps, 3, padding=1),
            nn.BatchNorm2d(maps),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(maps, channels, 3, padding=1),
            nn.Tanh(),
            nn.BatchNorm2d(channels, affine=False) if final_norm else nn.Identity(),
        )

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        maps = torch.cat([self.embed_noise(z), self.embed_label(self.onehot(z, y))], dim=1)
        images: Tensor = self.body(maps.view(len(z), 2 * self.start[0], *self.start[1:]))
        return images


class DCGAN(Generator):
    """The generator of DaFKD's code, after Radford et al. 2016 (arXiv:1511.06434): transposed convolutions, no label.

    From 1x1 to an eighth of the resolution, then three doublings; if a side is odd, its doubling adds one pixel.
    """

    conditional = False

    def __init__(self, classes: int, shape: tuple[int, ...], noise_dim: int, noise: str = "normal") -> None:
        super().__init__(classes, shape, noise_dim, noise)
        channels, height, width = shape
        if min(height, width) < 8:
            raise FedstillError(f"generator 'dcgan' makes images of at least 8 pixels, not {height} x {width}")
        layers: list[nn.Module] = [nn.ConvTranspose2d(noise_dim, 256, (height // 8, width // 8), bias=False)]
        for before, after, scale in ((256, 128, 4), (128, 64, 2), (64, channels, 1)):
            odd = (height // scale % 2, width // scale % 2)
            layers += [nn.BatchNorm2d(before), nn.ReLU(inplace=True)]
            layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, output_padding=odd, bias=False)]
        self.body = nn.Sequential(*layers, nn.Tanh())
        for module in self.modules():
            if isinstance(module, nn.ConvTranspose2d):
                nn.init.xavier_normal_(module.weight)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1, 0.02)

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        images: Tensor = self.body(z[:, :, None, None])
        return images


class MLPGenerator(Generator):
    """The DaFKD paper's description taken literally (Wang et al. 2023): two embeddings, fully connected layers.

    >>> build_generator("mlp-conditional", classes=3, shape=(5,), seed=0).sample(2, torch.Generator())[0].shape
    torch.Size([2, 5])
    """

    vectors = True

    def __init__(self, classes: int, shape: tuple[int, ...], noise_dim: int, noise: str = "normal", hidden: int = 256) -> None:
        super().__init__(classes, shape, noise_dim, noise)
        self.embed_noise = nn.Linear(noise_dim, hidden)
        self.embed_label = nn.Linear(classes, hidden)
        self.body = nn.Sequential(
            nn.BatchNorm1d(2 * hidden),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(2 * hidden, 2 * hidden),
            nn.BatchNorm1d(2 * hidden),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(2 * hidden, math.prod(shape)),
            nn.Tanh() if len(shape) == 3 else nn.Identity(),
        )

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        joined = torch.cat([self.embed_noise(z), self.embed_label(self.onehot(z, y))], dim=1)
        pixels: Tensor = self.body(joined)
        return pixels.view(len(z), *self.shape)


class FeatureGenerator(Generator):
    """FedGen's generator (Zhu et al. 2021, arXiv:2105.10056) of the head's input; unbounded, and z is uniform."""

    def __init__(self, classes: int, shape: tuple[int, ...], noise_dim: int, noise: str = "uniform", hidden: int = 256) -> None:
        super().__init__(classes, shape, noise_dim, noise)
        self.body = nn.Sequential(
            nn.Linear(noise_dim + classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, math.prod(shape)),
        )

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        features: Tensor = self.body(torch.cat([z, self.onehot(z, y)], dim=1))
        return features.view(len(z), *self.shape)


@dataclass(frozen=True)
class GeneratorKind:
    """A generator's class and one line on it, with its paper."""

    make: type[Generator]
    summary: str


def _adopted(name: str, thing: Any) -> GeneratorKind:
    if not (isinstance(thing, type) and issubclass(thing, Generator)):
        raise FedstillError(f"generator '{name}' is not a subclass of fedstill.models.Generator")
    return GeneratorKind(thing, (thing.__doc__ or "").strip().split("\n")[0])


GENERATORS: Registry[GeneratorKind] = Registry("generator", group="fedstill.generators", adopt=_adopted)
for _name, _make, _summary in (
    ("conditional", ConditionalGenerator, "label and noise maps, upsampling convolutions (FedFTG, Zhang et al. 2022)"),
    ("dcgan", DCGAN, "transposed convolutions, no label (DaFKD's code, after Radford et al. 2016)"),
    ("mlp-conditional", MLPGenerator, "label and noise embeddings, fully connected (DaFKD, Wang et al. 2023)"),
    ("features", FeatureGenerator, "features of the layer before the head (FedGen, Zhu et al. 2021)"),
):
    GENERATORS.add(_name, GeneratorKind(_make, _summary), _make)


def generator_kinds() -> list[str]:
    """Every kind of generator.

    >>> generator_kinds()
    ['conditional', 'dcgan', 'mlp-conditional', 'features']
    """
    return GENERATORS.names()


def describe_generator(kind: str) -> str:
    """One line on a kind of generator, with its paper."""
    return GENERATORS.get(kind).summary


def build_generator(
    kind: str,
    *,
    classes: int,
    shape: tuple[int, ...] | None = None,
    feature_dim: int | None = None,
    noise_dim: int = 100,
    seed: int | None = None,
    **options: Any,
) -> Generator:
    """A generator of images of ``shape`` (channels, height, width) or vectors (width,), or of ``feature_dim`` features for
    "features". For vectors, which cannot be convolved, "conditional" means "mlp-conditional".

    With ``seed`` the initial weights depend on the seed alone.
    """
    cls = GENERATORS.get(kind).make
    if cls is FeatureGenerator:
        if feature_dim is None:
            raise FedstillError("generator 'features' needs feature_dim, the width of the head's input")
        shape = (feature_dim,)
    elif shape is None or len(shape) not in (1, 3):
        raise FedstillError(f"generator '{kind}' needs a shape: (channels, height, width) of images, or (width,) of vectors")
    elif len(shape) == 1:
        cls = MLPGenerator if cls is ConditionalGenerator else cls
        if not cls.vectors:
            raise FedstillError(f"generator '{kind}' makes images, but the inputs are vectors: use 'mlp-conditional'")
    if noise_dim < 1:
        raise FedstillError(f"noise_dim = {noise_dim}: a generator needs at least one dimension of noise")
    valid = [key for key in inspect.signature(cls).parameters if key not in ("classes", "shape", "noise_dim")]
    for option in options:
        if option not in valid:
            raise unknown(f"option of generator '{kind}'", option, valid)
    with seeded(seed):
        made = cls(classes, tuple(shape), noise_dim, **options)
    made.kind, made.options = kind, options
    return made
