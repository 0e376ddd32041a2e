"""Accuracy before and after fusion, if there are labelled samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedstill.bundles.fuse.ensemble import shares
from fedstill.bundles.fuse.result import Figure
from fedstill.bundles.fuse.teachers import Team, averaged
from fedstill.bundles.images import load_images, relabelled
from fedstill.core.errors import FedstillError
from fedstill.core.message import clone
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import Table
from fedstill.models.network import Network
from fedstill.models.predict import accuracy, predict_logits

__all__ = ["Labelled", "Sets", "figure", "figures_before", "labelled_sets", "together"]

Labelled = Samples | str | Path | Sequence[str | Path] | Mapping[str, Samples | str | Path]
Sets = Mapping[str, Samples]  # labelled, by name


def labelled_sets(
    validation: Labelled | None,
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    seed: int,
    reading: Mapping[str, Any] | None = None,
) -> Sets:
    """The labelled samples by name, with labels that index ``classes``."""
    given: Iterable[tuple[str | None, Samples | str | Path]]
    if validation is None:
        given = []
    elif isinstance(validation, Mapping):
        given = validation.items()
    elif isinstance(validation, Samples | str | Path):
        given = [(None, validation)]
    else:
        given = [(None, source) for source in validation]
    sets: dict[str, Samples] = {}
    for name, source in given:
        if isinstance(source, Samples):
            if source.y is None or len(source) == 0:
                raise FedstillError("validation samples need labels")
            sets[name or "validation"] = source
            continue
        channels, size = (shape[0], shape[1]) if len(shape) == 3 else (None, None)
        images = load_images(source, image_size=size, channels=channels, seed=seed, reading=reading)
        sets[name or images.name] = relabelled(images, classes, "no teacher knows")
    return sets


def together(sets: Sets) -> Samples | None:
    """All labelled samples as one, for early stopping."""
    if not sets:
        return None
    parts = list(sets.values())
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts if part.y is not None]))


def figure(who: str, kind: str, network: Network, sets: Sets) -> list[Figure]:
    """The row of a network that knows all classes; empty without labelled samples."""
    return [Figure(who, kind, {name: accuracy(network, samples) for name, samples in sets.items()})] if sets else []


def figures_before(team: Team, sets: Sets, say: Callable[[Samples], Table]) -> tuple[list[Figure], dict[str, dict[str, float]]]:
    """The rows of each teacher, of the possible averages and of the ensemble (computed by ``say``), and the teachers' mean
    weights on each set."""
    if not sets:
        return [], {}
    figures = [Figure(m.name, "teacher", _scores(m.load(), team.places(m), sets)) for m in team.members]
    for group in team.groups:
        network = group[0].load()
        before = clone(network.state_dict())
        network.load_state_dict(averaged(group))
        who = f"average of {', '.join(member.name for member in group)}"
        figures.append(Figure(who, "average", _scores(network, team.places(group[0]), sets)))
        network.load_state_dict(before)  # a caller's module must not change
    found, weights = {}, {}
    for name, samples in sets.items():
        assert samples.y is not None
        table = say(samples.unlabelled())
        found[name], weights[name] = table.accuracy(samples.y), shares(team, table)
    return [*figures, Figure("ensemble", "ensemble", found)], weights


def _scores(network: Network, places: Sequence[int], sets: Sets) -> dict[str, float]:
    """The accuracy of a network whose outputs are a subset of all classes, or in another order."""
    found = {}
    for name, samples in sets.items():
        assert samples.y is not None
        said = predict_logits(network, samples).argmax(1)
        right = torch.tensor(places, device=said.device)[said] == samples.y.to(said.device)
        found[name] = float(right.double().mean())
    return found
