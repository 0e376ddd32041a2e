"""A bundle: one file with a site's trained model, and never data.

It is a safetensors file with the weights, what fusion needs to know about the site's domain, and a description in JSON. Reading
it runs no code from it: nothing is pickled, and the description is checked before anything is built from it. Two kinds of bundles
do contain or name code: a program (TorchScript, ``torch.export``) and a custom network (``module.path:callable``). They are
opened only if the user trusts the sender.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from fedstill.algorithm import Reply
from fedstill.bundles.programs import Program, open_program
from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.files import atomic_write
from fedstill.core.message import Message, State, clone
from fedstill.core.options import Part, Positive
from fedstill.core.version import __version__
from fedstill.fusion.screening import not_finite
from fedstill.local.reports.statistics import Statistics, statistics_fault
from fedstill.models import build, load_weights, names
from fedstill.models.network import Network
from fedstill.models.pretrained import PRETRAINED, find_weights
from fedstill.models.trunk import Top, cut_of, is_cut

__all__ = [
    "FORMAT",
    "About",
    "Architecture",
    "Bundle",
    "Subspace",
    "Trunk",
    "as_described",
    "build_network",
    "read_bundle",
    "scale_fault",
    "top_of",
    "write_bundle",
]

FORMAT = 1
Scale = float | list[float]


def scale_fault(mean: float | Sequence[float], std: float | Sequence[float]) -> str | None:
    """Why images cannot be normalised by these numbers, or None.

    >>> scale_fault(0.5, [0.2, 0.0])
    'standard deviations (std) must be finite and above zero, not 0.0'
    """
    means, stds = ([value] if isinstance(value, int | float) else list(value) for value in (mean, std))
    for value in means:
        if not math.isfinite(value):
            return f"means (mean) must be finite numbers, not {value}"
    for value in stds:
        if not (math.isfinite(value) and value > 0):
            return f"standard deviations (std) must be finite and above zero, not {value}"
    return None


class Architecture(Part):
    """A network by name, as :func:`fedstill.models.build` takes it."""

    name: str
    """A built-in model, ``torchvision:NAME`` or ``module.path:callable``."""

    norm: str = "batch"
    """Its normalisation layers: batch, group or none."""

    options: dict[str, Any] = {}
    """The options of that model."""

    @property
    def code(self) -> str | None:
        """The code that runs to build it, besides fedstill and torchvision, or None."""
        if self.name in names() or self.name.startswith("torchvision:"):
            return None
        return f"a network built by {self.name}"


class Subspace(Part):
    """The backbone of the projection matrix: its name, and the digest of its weights."""

    reference: str
    """The backbone's name, without folders."""

    digest: str
    """The fingerprint of its weights, without the head."""


class Trunk(Part):
    """The frozen part of a network, which was not trained at the site."""

    train: str
    """What was trained above it: ``head``, or ``last:N``."""

    digest: str
    """The fingerprint of its weights, its cut and its normalisation."""

    shape: Annotated[list[Positive], Field(min_length=1, max_length=3)]
    """The shape of its output for one image."""

    weights: str | None = None
    """Its packaged weights, such as ``imagenet``; the trunk is then not in the bundle."""

    @model_validator(mode="after")
    def _cut(self) -> Trunk:
        if not is_cut(self.train):
            raise ValueError("a fully trained network has no frozen trunk")
        return self


class About(Part):
    """The description in a bundle."""

    format: Literal[1] = 1
    """The version of the file format."""

    fedstill: str = __version__
    """The version of fedstill that wrote it."""

    name: str
    """What the site is called."""

    model: Architecture | None = None
    """The architecture whose weights the bundle holds, unless it holds a program."""

    program: Literal["torchscript", "export"] | None = None
    """The kind of program that the bundle holds instead."""

    classes: Annotated[list[str], Field(min_length=1)]
    """Class names in the order of the outputs."""

    shape: Annotated[list[Positive], Field(min_length=1, max_length=3)]
    """The inputs: (channels, height, width) of images."""

    mean: Scale = 0.5
    """The mean in ``(x / 255 - mean) / std``: one number, or one per channel."""

    std: Scale = 0.5
    """The standard deviation in the same normalisation."""

    range: tuple[float, float] | None = None
    """The values that are black and white in images of more than 8 bits, if that was said."""

    samples: Positive | None = None
    """The number of the site's samples, if given."""

    label_counts: list[Annotated[int, Field(ge=0)]] | None = None
    """The number of samples of each class, if given."""

    subspace: Subspace | None = None
    """The backbone of the projection, if there is one."""

    discriminator: str | None = None
    """The images that the discriminator distinguishes from the site's, if there is one."""

    trunk: Trunk | None = None
    """The frozen trunk, if only the layers above it were trained."""

    statistics: Statistics | None = None
    """How the statistics describe the site's features under the trunk, if there are any."""

    based_on: str | None = None
    """The digest of the fused model that training continued from."""

    @model_validator(mode="after")
    def _whole(self) -> About:
        if (self.model is None) == (self.program is None):
            raise ValueError("a bundle has either an architecture or a program")
        if self.trunk is not None and self.model is None:
            raise ValueError("a program has no frozen trunk")
        if self.statistics is not None and self.trunk is None:
            raise ValueError("statistics describe a frozen trunk's outputs, but there is no trunk")
        if self.range is not None and not (all(map(math.isfinite, self.range)) and self.range[0] < self.range[1]):
            raise ValueError("range should be two numbers, the lower one first")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("a class is named twice")
        if self.label_counts is not None and len(self.label_counts) != len(self.classes):
            raise ValueError("label counts and classes differ in number")
        wrong = scale_fault(self.mean, self.std)
        if wrong is not None:
            raise ValueError(wrong)
        return self

    @property
    def code(self) -> str | None:
        """The code that opening this bundle would run, in words, or None."""
        if self.program is not None:
            return f"a program ({'TorchScript' if self.program == 'torchscript' else 'torch.export'})"
        assert self.model is not None
        return self.model.code


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Tensors stay in the file until they are needed, so that fifty bundles take the memory of one.

    >>> import tempfile, torch
    >>> from fedstill.models import build
    >>> about = About(name="a", model=Architecture(name="mlp"), classes=["cat", "dog"], shape=[1, 4, 4])
    >>> path = Path(tempfile.mkdtemp()) / "a.fed"
    >>> bundle = write_bundle(path, about, model=build("mlp", classes=2, shape=(1, 4, 4), seed=0).state_dict())
    >>> again = read_bundle(path)
    >>> again.about.classes, again.digest == bundle.digest, again.network()(torch.zeros(1, 1, 4, 4)).shape
    (['cat', 'dog'], True, torch.Size([1, 2]))
    """

    path: Path
    about: About
    digest: str
    parts: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """What the site is called."""
        return self.about.name

    def tensors(self) -> Message:
        """Everything in the file, mapped into memory."""
        return Message.load(self.path)

    @property
    def state(self) -> State:
        """The weights, by the names of the network's tensors, including those of a packaged trunk that is not in the file."""
        trunk, given = self.about.trunk, self.tensors().group("model")
        if trunk is None or trunk.weights is None:
            return given
        return build_network(self.about, given, self.path.name).state_dict()

    def network(self, trust_code: bool = False) -> Network:
        """The site's network, ready to predict images of any size."""
        code = self.about.code
        if code is not None and not trust_code:
            raise FedstillError(
                f"{self.path.name} is {code}: opening it runs code; allow that with trust_code if you trust its sender"
            )
        if self.about.program is not None:
            stored = self.tensors().tensors["program/bytes"]
            body = open_program(stored.numpy().tobytes(), self.about.program, self.path.name)
            program = Program(body, self.path.name, tuple(self.about.shape), len(self.about.classes))
            return as_described(program, self.about).eval()
        return build_network(self.about, self.tensors().group("model"), self.path.name)

    def reply(self) -> Reply:
        """The bundle as a client's reply, which weightings use."""
        prototype = self.about.model.name if self.about.model is not None else self.about.program or ""
        return Reply(self.name, self.name, prototype, self.about.samples or 0, self.tensors)


def build_network(about: About, state: Mapping[str, Tensor], whose: str) -> Network:
    """The network that ``about`` describes, with the weights ``state``, in eval mode; a mismatch is a one-line error."""
    assert about.model is not None
    name, options = about.model.name, dict(about.model.options)
    if "weights" in options:
        raise FedstillError(f"{whose}: an architecture has its own weights and must not name another file")
    try:
        network = build(name, classes=len(about.classes), shape=about.shape, norm=about.model.norm, **options)
        _check_sizes(network.state_dict(), state)
        trunk = _packaged_trunk(network, about, state, whose)
        missing = network.load_state_dict({**trunk, **state}, strict=False)
    except (RuntimeError, TypeError, ValueError) as error:
        raise FedstillError(f"{whose}: the weights do not fit '{name}': {first_line(error)}") from error
    for key in (*missing.missing_keys, *missing.unexpected_keys):
        raise FedstillError(f"{whose}: '{name}' {'needs' if key in missing.missing_keys else 'has no'} tensor '{key}'")
    as_described(network, about)
    if about.trunk is not None and top_of(network, about.trunk).digest != about.trunk.digest:
        raise FedstillError(f"{whose}: the trunk differs from the one in training: other weights of '{name}', or damaged")
    return network.eval()


def _packaged_trunk(network: Network, about: About, state: Mapping[str, Tensor], whose: str) -> State:
    """The tensors of a packaged trunk, which is not in the file."""
    trunk, name = about.trunk, about.model.name if about.model is not None else ""
    if trunk is None or trunk.weights is None or network.state_dict().keys() <= state.keys():
        return {}
    if trunk.weights not in PRETRAINED.get(name, {}):  # a bundle must not name files
        raise FedstillError(f"{whose}: its trunk has weights '{trunk.weights}' of '{name}', which this fedstill does not know")
    found = find_weights(name, trunk.weights)
    assert found is not None
    load_weights(network, found[0])
    return clone(top_of(network, trunk).trunk_state)


def top_of(network: Network, trunk: Trunk) -> Top:
    """The trained part of a network, above its frozen trunk."""
    return Top(network, cut_of(network, trunk.train))


def _check_sizes(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for key, tensor in own.items():
        if key in given and given[key].shape != tensor.shape:
            raise ValueError(f"'{key}' is {tuple(given[key].shape)} in the file and {tuple(tensor.shape)} in the network")


def as_described(network: Network, about: About) -> Network:
    """The same network, which now takes raw images of any size, as ``about`` describes."""
    network.mean, network.std = about.mean, about.std
    network.input_shape = tuple(about.shape) if len(about.shape) == 3 else None
    return network


def write_bundle(path: Path, about: About, **parts: Mapping[str, Tensor]) -> Bundle:
    """Write a bundle atomically; ``parts`` are groups of tensors: model or program, projection, discriminator, statistics."""
    message = Message.of(**{name: clone(part) for name, part in parts.items() if part})
    _check_finite(path, message)
    said = json.dumps(about.model_dump(mode="json", exclude_none=True), sort_keys=True)
    mark = digest(message.tensors, said)
    data = message.with_parts(bundle=said, digest=mark).to_bytes()
    try:
        atomic_write(path, data)
    except OSError as error:
        raise FedstillError(f"cannot write {path}: {error.strerror}") from error
    return Bundle(path, about, mark, tuple(message.groups()))


def read_bundle(path: str | Path) -> Bundle:
    """Open a bundle and check that it is complete and unchanged. Nothing in it is executed."""
    path = Path(path)
    if not path.exists():
        raise FedstillError(f"no such bundle: {path}")
    if path.is_dir():
        raise FedstillError(f"{path} is a folder, not a bundle")
    try:
        message = Message.load(path)
    except FedstillError as error:
        raise FedstillError(f"{path} is not a bundle, or is truncated ({first_line(error.__cause__ or error)})") from error
    said, mark = message.values.get("bundle"), message.values.get("digest")
    if not isinstance(said, str) or not isinstance(mark, str):
        raise FedstillError(f"{path} is not a bundle: it has no description; `fedstill pack` makes one")
    if digest(message.tensors, said) != mark:
        raise FedstillError(f"{path} was changed or damaged after it was packed: its digest does not match")
    about = _about(path, said)
    groups = tuple(message.groups())
    if ("program" if about.program else "model") not in groups:
        raise FedstillError(f"{path}: the bundle describes a model but does not contain it")
    _check_finite(path, message)
    if about.statistics is not None and about.trunk is not None:
        width, part = math.prod(about.trunk.shape), message.group("statistics")
        wrong = statistics_fault(part, width, len(about.classes), about.samples, about.trunk.digest)
        if wrong is not None:
            raise FedstillError(f"{path}: {wrong}")
    return Bundle(path, about, mark, groups)


def _check_finite(path: Path, message: Message) -> None:
    wrong = not_finite(message)
    if wrong is not None:
        raise FedstillError(f"{path}: '{wrong}' has values that are not finite")


def _about(path: Path, said: str) -> About:
    try:
        tree = json.loads(said)
        if isinstance(tree, dict) and tree.get("format") != FORMAT:
            raise FedstillError(
                f"{path} has format {tree.get('format')}, but this fedstill reads format {FORMAT}: pack it again, or upgrade"
            )
        return About.model_validate(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise FedstillError(f"{path}: bad description: {where + ': ' if where else ''}{problem['msg']}") from None
    except ValueError as error:
        raise FedstillError(f"{path}: bad description: {first_line(error)}") from None
