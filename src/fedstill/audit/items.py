"""What left each site, item by item, with sizes and what each item can reveal. Nothing is built, trained or unpickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstill.algorithm import ALGORITHMS
from fedstill.bundles.bundle import Bundle
from fedstill.core.console import megabytes
from fedstill.core.errors import FedstillError
from fedstill.report.runs import Run
from fedstill.run.budgets import NAMES, budget_words, said_epsilon
from fedstill.run.sent import add_items

__all__ = [
    "HEAD",
    "RISKS",
    "Item",
    "ItemGroup",
    "bundle_items",
    "bundle_privacy",
    "group_items",
    "privacy_words",
    "run_items",
    "short_privacy",
]

NO_MORE = "nothing about single samples"
RISKS = {
    "model": "membership of a sample can be tested; with few samples and steps, inputs can be partly reconstructed",
    "buffers": "mean and variance of the features of the site's data, layer by layer",
    "layer": "as weights: membership can be tested, inputs partly reconstructed",
    "projection": "the directions in which the features vary: kinds of inputs, not single inputs",
    "discriminator": "whoever holds it can ask of any input whether it looks like the site's",
    "generator": "samples drawn from it resemble the data",
    "statistics": "mean and variation of each class's features; easier to invert if few samples are behind a mean",
    "counts": "how many samples of each class the site has",
    "label_counts": "how many samples of each class the site has",
    "coverage": "how well the description covers the site's data",
    "moments": "mean and variation of the site's features",
    "predictions": "membership of a public sample can be tested; which labels the site holds",
    "answers": "a masked sum: nothing but the sum over the clients",
    "masked": "a masked model, or masked votes: nothing but the sum over the clients",
    "shared_model": "a masked model: nothing but the sum over the clients",
    "shared_generator": "a masked generator: nothing but the sum over the clients",
    "program": "code, which runs when someone opens it; the same as weights",
    "samples": "how many samples the site has",
    "loss": "how well the model fits the site's data, as one mean",
    "classes": "the names of the site's classes",
    "epsilon": "what its privacy ledger has spent; follows from the options and its number of samples",
    "key": NO_MORE,
    "seal_key": NO_MORE,
    "mask_key": NO_MORE,
    "boxes": NO_MORE,
    "shares": NO_MORE,
}
UNITS = {
    "sample": "a sample",
    "client": "a client",
    "reports": "a sample of reports alone",
    "votes": "a client of votes",
}
HEAD = ("site", "item", "times", "size each", "what it can reveal")
MOST_NAMED = 3  # sites in one row
UNKNOWN = "not known to this audit: ask who wrote the system"


@dataclass(frozen=True)
class Item:
    """One kind of thing that left a site: how often, and how many bytes a time."""

    site: str
    what: str
    times: int
    bytes_each: int | None  # the mean over the round's clients; None if the run did not record it

    @property
    def risk(self) -> str:
        """What it can reveal, in words."""
        return RISKS.get(self.what, UNKNOWN)

    def to_json(self) -> dict[str, Any]:
        """As it is written to ``audit.json``."""
        total = None if self.bytes_each is None else self.bytes_each * self.times
        return {
            "site": self.site,
            "item": self.what,
            "times": self.times,
            "bytes_each": self.bytes_each,
            "bytes": total,
            "risk": self.risk,
        }


@dataclass(frozen=True)
class ItemGroup:
    """An item that several sites sent as often and in the same size, as it is shown to people."""

    item: Item
    sites: tuple[str, ...]
    everyone: bool  # whether no other site sent anything

    @property
    def who(self) -> str:
        """The sites in words: names where there are few or where others sent something else."""
        if len(self.sites) == 1:
            return self.sites[0]
        if self.everyone:
            return f"each of {len(self.sites)} sites"
        more = f" and {len(self.sites) - MOST_NAMED} more" if len(self.sites) > MOST_NAMED else ""
        return ", ".join(self.sites[:MOST_NAMED]) + more

    @property
    def cells(self) -> list[str]:
        """A row of a table with the columns ``HEAD``."""
        size = "not recorded" if self.item.bytes_each is None else megabytes(self.item.bytes_each)
        return [self.who, self.item.what.replace("_", " "), f"{self.item.times:,}", size, self.item.risk]


def group_items(items: Sequence[Item]) -> list[ItemGroup]:
    """Items with those of other sites that are equal to them, in the order of the first.

    >>> items = [Item(site, what, 2, 40) for site in "ab" for what in ("model", "label_counts")]
    >>> [group.cells[:4] for group in group_items([*items, Item("a", "loss", 2, 4)])]  # doctest: +NORMALIZE_WHITESPACE
    [['each of 2 sites', 'model', '2', '40 B'], ['each of 2 sites', 'label counts', '2', '40 B'], ['a', 'loss', '2', '4 B']]
    """
    all_sites = {item.site for item in items}
    sites: dict[tuple[str, int, int | None], list[Item]] = {}
    for item in items:
        sites.setdefault((item.what, item.times, item.bytes_each), []).append(item)
    return [ItemGroup(same[0], tuple(one.site for one in same), len(same) == len(all_sites)) for same in sites.values()]


def run_items(run: Run) -> list[Item]:
    """What each client of a run sent. Sizes are the means over the clients of each round.

    >>> from pathlib import Path
    >>> line = {"round": 1, "clients": ["a", "b"], "sent": {"model": 80, "samples": 4}}
    >>> [(i.site, i.what, i.times, i.bytes_each) for i in run_items(Run(Path("r"), history=[line, line]))]
    [('a', 'model', 2, 40), ('a', 'samples', 2, 2), ('b', 'model', 2, 40), ('b', 'samples', 2, 2)]
    """
    if not run.history:
        raise FedstillError(f"{run.folder} has no history: nothing has been sent yet")
    found: dict[tuple[str, str], list[float]] = {}
    for line in run.history:
        clients = list(line.get("clients") or ())
        for client in clients:
            for what, size in (line.get("sent") or {}).items():
                found.setdefault((client, what), []).append(size / len(clients))
    if found:
        return [Item(site, what, len(sizes), round(sum(sizes) / len(sizes))) for (site, what), sizes in sorted(found.items())]
    times: dict[str, int] = {}  # a run of an older version: its system says what it needs
    for line in run.history:
        for client in line.get("clients") or ():
            times[client] = times.get(client, 0) + 1
    try:
        needed: Sequence[str] = ALGORITHMS.get(run.algorithm).requires
    except FedstillError:
        needed = ("model",)
    return [Item(site, what, count, None) for site, count in sorted(times.items()) for what in (*needed, "samples", "loss")]


def bundle_items(bundle: Bundle) -> list[Item]:
    """What a packed bundle holds."""
    sizes: dict[str, int] = {}
    add_items(sizes, bundle.tensors().without("bundle", "digest"))
    about = bundle.about
    values = {"classes": about.classes, "samples": about.samples, "label_counts": about.label_counts}
    for name, value in values.items():
        if value is not None:
            sizes[name] = len(str(value))
    return [Item(about.name, what, 1, size) for what, size in sizes.items()]


def privacy_words(config: Mapping[str, Any], summary: Mapping[str, Any] | None = None) -> tuple[bool | None, list[str]]:
    """Whether a run limits by a stated mechanism what single samples or clients reveal, and what covers what, in words. An empty
    configuration is one that cannot be read: whether the run was private is not known then.

    >>> privacy_words({"seed": 0})
    (False, ['not private: no privacy is set, and nothing limits what is learned from what was sent'])
    >>> privacy_words({"privacy": {"secure": {"bits": 64}}})[0]
    False
    >>> privacy_words({})
    (None, ['not known whether it is private: the configuration cannot be read, which says what privacy was set'])
    """
    table = config.get("privacy", {})
    lines = budget_words((summary or {}).get("privacy"))
    if not config or not isinstance(table, Mapping):
        unknown = "not known whether it is private: the configuration cannot be read, which says what privacy was set"
        return None, [*lines, unknown]
    kinds = [kind for kind in NAMES if isinstance(table.get(kind), Mapping)]
    private = "client" in kinds or "sample" in kinds  # reports alone leave the weights as they are
    if not lines:
        lines = [f"{NAMES[kind]}: its epsilon is not recorded yet" for kind in kinds]
    if isinstance(table.get("votes"), Mapping):
        voted = (summary or {}).get("votes")
        told_votes = voted if isinstance(voted, Mapping) else {}
        epsilon = told_votes.get("epsilon")
        stated = f"epsilon {epsilon:.3g}" if isinstance(epsilon, int | float) else "an epsilon that is not recorded yet"
        covers = told_votes.get("covers", "epsilon does not cover what the server received")
        lines.append(f"votes are noised before a student learns from them: {stated}; {covers}")
    if isinstance(table.get("secure"), Mapping) and isinstance(table.get("votes"), Mapping):
        private = True
        lines.append("secure sums: the server saw the noised sum of the votes, not single ones")
    elif isinstance(table.get("secure"), Mapping):
        lines.append("secure sums: the server saw the sum over the clients, not single models; this is no differential privacy")
    if not lines:
        lines = ["not private: no privacy is set, and nothing limits what is learned from what was sent"]
    elif not private:
        rest = "from the rest of what was sent" if "reports" in kinds else "about single samples"
        lines.append(f"not private: no differential privacy limits what the server learns {rest}")
    return private, lines


def short_privacy(summary: Mapping[str, Any] | None) -> str:
    """What a run has spent, and of what unit, in few words.

    >>> short_privacy({"privacy": {"sample": {"epsilon": 3.0}}}), short_privacy({})
    ('epsilon 3 a sample', 'no privacy')
    >>> short_privacy({"privacy": {"reports": {"epsilon": 4.0}}, "votes": {"epsilon": 2.0}})
    'epsilon 4 a sample of reports alone, epsilon 2 a client of votes'
    """
    found = dict(summary or {})
    spent = found.get("privacy")
    entries = {**(spent if isinstance(spent, Mapping) else {}), "votes": found.get("votes")}
    said = {kind: said_epsilon(entry) for kind, entry in entries.items() if isinstance(entry, Mapping)}
    told = [f"epsilon {epsilon:.3g} {UNITS[kind]}" for kind, epsilon in said.items() if epsilon is not None and kind in UNITS]
    return ", ".join(told) or "no privacy"


def bundle_privacy() -> list[str]:
    """The same for a bundle, which has no mechanism."""
    return ["not private: a bundle holds weights without noise, and nothing limits what its holder can learn from them"]
