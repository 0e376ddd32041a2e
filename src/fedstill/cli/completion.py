"""Shell completion. An answer must come while the user types, so nothing here imports torch."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, MutableMapping
from importlib.metadata import entry_points
from pathlib import Path

from fedstill.config.presets import presets

__all__ = ["KEYS", "SYSTEMS", "assignments", "bash_words", "configurations", "joined_words", "systems"]

# the names of the built-in systems; the registry has them too (a test compares), but importing it imports the systems
SYSTEMS = (
    "ceiling",
    "cronus",
    "dafkd",
    "fada",
    "fd",
    "fedavg",
    "fedavgm",
    "fedbe",
    "fedd3a",
    "feddf",
    "fedftg",
    "fedgen",
    "fedma",
    "fedmd",
    "fedprox",
    "fedrad",
    "fedvirtual",
    "kd3a",
    "kdcl",
    "moon",
    "shot",
)

# the keys of a configuration, for the same reason
KEYS = (
    "clients.fraction",
    "clients.min_replies",
    "clients.partition.alpha",
    "clients.partition.classes_per_client",
    "clients.partition.kind",
    "clients.partition.min_samples",
    "clients.partition.redraws",
    "clients.partition.shards_per_client",
    "clients.partition.variant",
    "clients.per_domain",
    "clients.per_round",
    "clients.timeout",
    "clients.validation",
    "clients.validation_drawn",
    "data.channels",
    "data.classes",
    "data.domains",
    "data.holdout",
    "data.ignore",
    "data.image_size",
    "data.kind",
    "data.label",
    "data.limit",
    "data.mean",
    "data.poison.clients",
    "data.poison.fraction",
    "data.poison.kind",
    "data.poison.level",
    "data.poison.scale",
    "data.pool_classes",
    "data.pool_fraction",
    "data.pool_limit",
    "data.range",
    "data.root",
    "data.server",
    "data.standardise",
    "data.std",
    "data.target",
    "data.test_limit",
    "data.text.length",
    "data.text.tokenizer",
    "data.text.vocab",
    "data.unreadable",
    "data.validation",
    "engine.compile",
    "engine.device",
    "engine.name",
    "engine.precision",
    "engine.threads",
    "engine.workers",
    "evaluation.batch_size",
    "evaluation.ensemble",
    "evaluation.every",
    "evaluation.keep_ensemble",
    "evaluation.samples_every",
    "evaluation.targets",
    "local.augment.crop",
    "local.augment.flip",
    "local.backbone_rate",
    "local.batch_size",
    "local.clip",
    "local.drop_last",
    "local.epochs",
    "local.optimizer.betas",
    "local.optimizer.lr",
    "local.optimizer.momentum",
    "local.optimizer.name",
    "local.optimizer.nesterov",
    "local.optimizer.weight_decay",
    "local.schedule.factor",
    "local.schedule.final",
    "local.schedule.kind",
    "local.steps",
    "model.buffers",
    "model.by",
    "model.cache",
    "model.clients",
    "model.name",
    "model.norm",
    "model.options",
    "model.student",
    "model.train",
    "model.variants",
    "model.views",
    "model.weights",
    "privacy.client.adaptive.count_noise",
    "privacy.client.adaptive.quantile",
    "privacy.client.adaptive.rate",
    "privacy.client.clip",
    "privacy.client.delta",
    "privacy.client.epsilon",
    "privacy.client.noise",
    "privacy.client.secret",
    "privacy.reports.clip",
    "privacy.reports.delta",
    "privacy.reports.epsilon",
    "privacy.reports.noise",
    "privacy.reports.secret",
    "privacy.sample.delta",
    "privacy.sample.epsilon",
    "privacy.sample.max_grad_norm",
    "privacy.sample.noise",
    "privacy.sample.secret",
    "privacy.secure.bits",
    "privacy.secure.largest",
    "privacy.secure.threshold",
    "privacy.votes.delta",
    "privacy.votes.epsilon",
    "privacy.votes.secret",
    "privacy.votes.sigma",
    "privacy.votes.sigma_threshold",
    "privacy.votes.threshold",
    "rounds",
    "seed",
)


def configurations(incomplete: str) -> list[tuple[str, str]]:
    """Presets with their descriptions, and TOML files.

    >>> [name for name, _ in configurations("dem")]
    ['demo']
    """
    named = [(name, what) for name, what in presets().items() if name.startswith(incomplete)]
    here = Path(f"{incomplete}x").parent  # "a/" and "a/b" are both looked up in a
    if not here.is_dir():
        return named
    found = [path for path in sorted(here.iterdir()) if path.is_dir() or path.suffix == ".toml"]
    names = [f"{path.as_posix()}/" if path.is_dir() else path.as_posix() for path in found if not path.name.startswith(".")]
    return [*named, *((name, "") for name in names if name.startswith(incomplete))]


def systems(incomplete: str) -> list[str]:
    """Systems, for the last word of a comma-separated list.

    >>> systems("fedavg,fedp")
    ['fedavg,fedprox']
    """
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in _systems() if name.startswith(last) and name not in taken]


def assignments(incomplete: str) -> list[str]:
    """The keys of a configuration, and the systems' names.

    >>> assignments("algorithm.name=fedp"), assignments("local.ep")
    (['algorithm.name=fedprox'], ['local.epochs='])
    """
    offered = [*(f"algorithm.name={name}" for name in _systems()), *(f"{key}=" for key in KEYS)]
    return [key for key in offered if key.startswith(incomplete)]


@contextlib.contextmanager
def bash_words(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Undo bash's word breaks during completion. It breaks words at ``=`` and ``:`` and expects only the part after the last
    break: the words are rejoined first, and the answers are cut afterwards."""
    words = environment.get("COMP_WORDS", "").split("\n")
    if environment.get("_FEDSTILL_COMPLETE") != "complete_bash" or not environment.get("COMP_CWORD", "").isdigit():
        yield
        return
    joined, place, before = joined_words(words, int(environment["COMP_CWORD"]))
    environment.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(place))
    answer = io.StringIO()
    try:
        with contextlib.redirect_stdout(answer):
            yield
    finally:
        sys.stdout.write("".join(line.removeprefix(before) for line in answer.getvalue().splitlines(keepends=True)))


def joined_words(words: list[str], place: int) -> tuple[list[str], int, str]:
    """Rejoin words that bash broke; also the new place of the word at ``place`` and its part before the break.

    >>> joined_words(["fedstill", "run", "--set", "algorithm.name", "=", "fed"], 5)
    (['fedstill', 'run', '--set', 'algorithm.name=fed'], 3, 'algorithm.name=')
    """
    found: list[str] = []
    now, before, open_end = place, "", False
    for number, word in enumerate(words):
        breaks = bool(word) and set(word) <= set("=:")
        glued = bool(found) and (breaks or open_end)
        if number == place:
            before = found[-1] + (word if breaks else "") if glued else ""
            now = len(found) - 1 if glued else len(found)
        if glued:
            found[-1] += word
        else:
            found.append(word)
        open_end = breaks and len(found) > 1
    return found, now, before


def _systems() -> list[str]:
    return sorted({*SYSTEMS, *(point.name for point in entry_points(group="fedstill.algorithms"))})
