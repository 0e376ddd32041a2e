"""``fedstill audit``: the items, the attacks, ``audit.json`` and the page ``audit.html``."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedstill.audit.inversion import Inversion, invert
from fedstill.audit.items import (
    HEAD,
    Item,
    bundle_items,
    bundle_privacy,
    group_items,
    privacy_words,
    run_items,
    short_privacy,
)
from fedstill.audit.membership import Attack, lira_attack, loss_attack, matched
from fedstill.audit.subjects import Subject, bundle_subjects, run_subjects
from fedstill.bundles.bundle import read_bundle
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.files import atomic_write, to_json
from fedstill.report.runs import load_run
from fedstill.report.shell import page_shell, row

__all__ = ["Audit", "Tested", "audit", "write_audit"]

Progress = Callable[[str, int, int], None]
TEXTS = {"site", "item", "what it can reveal", "model", "attack", "method", "members recognised"}  # columns of words
STYLE = """
th { white-space: normal; vertical-align: bottom; }
td { vertical-align: top; }
.text { text-align: left; white-space: normal; overflow-wrap: break-word; }
.text:first-child { min-width: 9rem; }
"""


@dataclass(frozen=True)
class Tested:
    """The attacks on one model's training samples."""

    subject: str
    samples: int  # members, and as many others
    attacks: list[Attack]


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit."""

    name: str
    private: bool | None  # None if that is not known
    words: list[str]
    items: list[Item]
    tested: list[Tested] = field(default_factory=list)
    inverted: list[Inversion] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As it is written to ``audit.json``."""
        return {
            "name": self.name,
            "private": self.private,
            "privacy": self.words,
            "items": [item.to_json() for item in self.items],
            "membership": [_figures(one, attack) for one in self.tested for attack in one.attacks],
            "inversion": [one.to_json() for one in self.inverted],
            "notes": self.notes,
        }


def audit(
    path: str | Path,
    *,
    data: str | None = None,
    held_out: str | None = None,
    beside: Sequence[str | Path] = (),
    attacks: Sequence[str] = ("membership", "inversion"),
    samples: int = 500,
    shadows: int = 4,
    epochs: int | None = None,
    batch: int = 1,
    seed: int = 0,
    reading: Mapping[str, Any] | None = None,
    trust_code: bool = False,
    progress: Progress = lambda what, done, of: None,
) -> Audit:
    """Audit a run's folder or a bundle. A run's own data is used for the attacks; a bundle's are made only with ``data``.

    ``beside`` are other runs, such as the same with differential privacy: membership attacks on their final models are in the
    same table and picture, with the same samples if the runs have the same data.
    """
    path = Path(path)
    if not path.exists():
        raise FedstillError(f"no such run or bundle: {path}")
    if shadows and shadows % 2:
        raise FedstillError(f"shadow models come in pairs: 0, 2, 4, ... not {shadows}")
    if beside and "membership" not in attacks:
        raise FedstillError("--beside compares membership attacks: add membership to --attacks")
    notes: list[str] = []
    subjects: list[Subject] = []
    if path.is_dir():
        if data is not None or held_out is not None:
            raise FedstillError("a run has its own data: --data and --held-out are for bundles")
        if not (path / "history.jsonl").is_file():
            raise FedstillError(f"{path} is not the folder of a run: it has no history.jsonl")
        run = load_run(path)
        private, words = privacy_words(run.config, run.summary)
        items = run_items(run)
        notes += run.problems
        if any(item.bytes_each is None for item in items):
            notes.append("this run did not record what was sent: the items are those that its system needs, without sizes")
        if attacks:
            try:
                subjects = run_subjects(path, epochs, trust_code)
            except FedstillError as error:
                notes.append(f"no attacks: {first_line(error)}")
    else:
        if beside:
            raise FedstillError("--beside compares runs, and a bundle is none")
        bundle = read_bundle(path)
        private, words, items = False, bundle_privacy(), bundle_items(bundle)
        if attacks and data is not None:
            subjects = bundle_subjects(path, data, held_out, epochs=epochs, reading=reading, trust_code=trust_code)
        elif held_out is not None:
            raise FedstillError("--held-out are samples that the model was not trained on; also name those it was: --data")
        else:
            notes.append("no attacks: give the samples that the model was trained on (--data) and others (--held-out)")
    tested, inverted = [], []
    if "membership" in attacks:
        named = [(one, _named_by_run(one, path) if beside else one.name) for one in subjects]
        finals = [(run_subjects(Path(other), epochs, trust_code)[-1], Path(other)) for other in beside]
        named += [(one, _named_by_run(one, folder)) for one, folder in finals]
        tested = [_tested(subject, name, samples, shadows, seed, progress) for subject, name in named]
    for subject in subjects:
        if "inversion" in attacks:
            who = (subject.name, subject.network, subject.members)
            found = invert(*who, batch=batch, seed=seed, private=subject.private, progress=progress)
            if isinstance(found, str):
                notes.append(found)
            else:
                inverted.append(found)
    return Audit(path.resolve().name, private, words, items, tested, inverted, notes)


def _named_by_run(subject: Subject, folder: Path) -> str:
    """A name for the subject that says of which run it is, and what that has spent."""
    return f"{subject.name} of {folder.resolve().name} ({short_privacy(load_run(folder).summary)})"


def _tested(subject: Subject, name: str, most: int, shadows: int, seed: int, progress: Progress) -> Tested:
    """The attacks, under a name to show. The random choices follow from the subject's own, which is that of its like in another
    run."""
    members, others = matched(subject.members, subject.others, most, seed, subject.name)
    found = [loss_attack(subject.network, members, others)]
    if shadows:
        found.append(
            lira_attack(
                subject.network,
                members,
                others,
                subject.shadow,
                subject.local,
                shadows=shadows,
                seed=seed,
                name=subject.name,
                head_only=subject.head_only,
                progress=progress,
            )
        )
    return Tested(name, len(members), found)


def _figures(one: Tested, attack: Attack) -> dict[str, Any]:
    return {
        "model": one.subject,
        "attack": attack.name,
        "members": one.samples,
        "auc": attack.auc,
        "error": attack.error,
        "found_at_1_percent": attack.found_at(0.01),
        "recognises": attack.recognises,
    }


def write_audit(found: Audit, out: Path) -> Path:
    """Write ``audit.json`` and ``audit.html`` to the folder ``out``; return the page's path."""
    if out.is_file():
        raise FedstillError(f"{out} is a file; give a folder to write to")
    if out.is_dir() and any(out.iterdir()) and not (out / "audit.json").exists():
        raise FedstillError(f"{out} holds other files; give a new folder to write to")
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "audit.json", to_json(found.to_json()) + "\n")
    atomic_write(out / "audit.html", audit_page(found))
    return out / "audit.html"


def audit_page(found: Audit) -> str:
    """The page of an audit, as HTML text."""
    title = {True: "Private", False: "Not private", None: "Not known whether private"}[found.private]
    stated = "".join(f"<p>{escape(_below(title, line))}.</p>" for line in found.words)
    parts = [f"<section><h2>{title}</h2>{stated}</section>", _items(found.items)]
    if found.tested:
        parts.append(_membership(found.tested))
    if found.inverted:
        parts.append(_inversion(found.inverted))
    if found.notes:
        parts.append(f"<section><h2>Notes</h2>{''.join(f'<p>{escape(note)}</p>' for note in found.notes)}</section>")
    return page_shell(f"{found.name}, audited", "\n".join(parts), STYLE)


def _below(title: str, line: str) -> str:
    """A line without the words of the heading above it.

    >>> _below("Not private", "not private: no privacy is set"), _below("Private", "secure sums: the server saw the sum")
    ('No privacy is set', 'Secure sums: the server saw the sum')
    """
    for said in (f"{title.lower()}: ", "not known whether it is private: "):
        line = line.removeprefix(said)
    return line[:1].upper() + line[1:]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    texts = [place for place, name in enumerate(head) if name in TEXTS]
    body = row("th", list(head), texts) + "".join(row("td", list(cells), texts) for cells in rows)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{body}</table></div>'


def _items(items: Sequence[Item]) -> str:
    table = _table(HEAD, [group.cells for group in group_items(items)], "What left each site")
    return f"<section><h2>What left each site</h2>{table}</section>"


def _membership(tested: Sequence[Tested]) -> str:
    rows = [
        [
            one.subject,
            attack.name,
            f"{one.samples:,}",
            f"{attack.auc:.3f} ± {attack.error:.3f}",
            f"{100 * attack.found_at(0.01):.1f} %",
            "yes" if attack.recognises else "not beyond chance",
        ]
        for one in tested
        for attack in one.attacks
    ]
    head = ["model", "attack", "members", "AUC", "found at 1 % false", "members recognised"]
    why = (
        "Members are samples that the model was trained on; as many others of the same classes were not. An AUC of 0.5 is "
        "chance. The attacks give a lower bound: a better attacker may find more."
    )
    return (
        f"<section><h2>Membership inference</h2><p class='why'>{why}</p>{_table(head, rows, 'Membership inference')}"
        f"{_picture(_curves(tested), 'True against false members')}</section>"
    )


def _curves(tested: Sequence[Tested]) -> Figure:
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    for one in tested[:10]:
        for attack in one.attacks:
            false, true = attack.curve()
            axes.plot(false, true, label=f"{one.subject}, {attack.name} ({attack.auc:.2f})")
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="chance (0.50)")
    axes.set_xlabel("others called members")
    axes.set_ylabel("members found")
    axes.legend(fontsize="small", loc="lower right")
    return figure


def _inversion(inverted: Sequence[Inversion]) -> str:
    rows = [
        [one.subject, one.method, str(one.batch), f"{one.similarity:.3f}", f"{one.chance:.3f}", f"{one.psnr:.1f} dB"]
        for one in inverted
    ]
    head = ["model", "method", "batch", "correlation with the original", "of other samples with it", "PSNR"]
    why = (
        "Inputs reconstructed from the gradient of one batch, which a client with one local step sends. Labels are taken as "
        "known. Longer local training makes this harder; a failed reconstruction is no proof of privacy."
    )
    pictures = "".join(
        _picture(drawn, f"{one.subject}: originals above, reconstructions below") for one in inverted if (drawn := one.figure())
    )
    table = _table(head, rows, "Gradient inversion")
    return f"<section><h2>Gradient inversion</h2><p class='why'>{why}</p>{table}{pictures}</section>"


def _picture(figure: Figure, alt: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    encoded = base64.b64encode(file.getvalue()).decode("ascii")
    return (
        f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{encoded}"><figcaption>{escape(alt)}</figcaption></figure>'
    )
