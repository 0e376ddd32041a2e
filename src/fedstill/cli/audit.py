"""``fedstill audit``: what left each site, and attacks on it with your own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from fedstill.cli.options import reading_in, words
from fedstill.cli.progress import progress
from fedstill.core.console import console, remark
from fedstill.core.errors import FedstillError, unknown

__all__ = ["audit"]

ATTACKS = ("membership", "inversion")
MOST_SHOWN = 40  # rows of items on the console; the page has all


def audit(
    path: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="The folder of a run, or a bundle from `fedstill pack`.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to write audit.json and audit.html to: by default RUN/audit, or for NAME.fed NAME-audit beside it."
        ),
    ] = None,
    attacks: Annotated[
        str, typer.Option(metavar="A,B", help="What to try: membership, inversion, or none.")
    ] = "membership,inversion",
    data: Annotated[
        str | None, typer.Option(help="A bundle's own training images, e.g. site_a#train. A run's are in its configuration.")
    ] = None,
    held_out: Annotated[str | None, typer.Option(help="Images that the bundle's model was not trained on.")] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Another run to attack, such as the same with privacy; can be repeated."),
    ] = None,
    samples: Annotated[int, typer.Option(min=10, help="The largest number of members, and of others.")] = 500,
    shadows: Annotated[int, typer.Option(min=0, help="Shadow models of the likelihood-ratio attack, an even number.")] = 4,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of a shadow model (by default as the run, at most 30).")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=16, help="Samples behind the gradient that is inverted.")] = 1,
    seed: Annotated[int, typer.Option(help="The seed of the attacks.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How a bundle's data is read, e.g. data.range=[0,4095]."),
    ] = None,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Open a model that contains or names a program. This runs its code.")
    ] = False,
) -> None:
    """Say what left each site, item by item, and try on your own data what an attacker could learn from it: whether a sample was
    in the training data (membership), and what inputs a gradient gives away (inversion)."""
    # slow: they import torch
    from fedstill.audit.items import HEAD, group_items
    from fedstill.audit.report import audit as examine
    from fedstill.audit.report import write_audit  # slow

    asked = [word for word in words(attacks) if word != "none"]
    for word in asked:
        if word not in ATTACKS:
            raise unknown("attack", word, [*ATTACKS, "none"])
    reading, others = reading_in(list(set_ or []))
    if others:
        raise FedstillError(f"--set takes options of reading data, such as data.range=[0,4095], not '{others[0]}'")
    target = out or (path / "audit" if path.is_dir() else path.with_name(f"{path.stem}-audit"))
    with progress(f"reading {path}") as told:
        found = examine(
            path,
            data=data,
            held_out=held_out,
            beside=list(beside or []),
            attacks=asked,
            samples=samples,
            shadows=shadows,
            epochs=epochs,
            batch=batch,
            seed=seed,
            reading=reading,
            trust_code=trust_code,
            progress=told,
        )
        page = write_audit(found, target)
    groups = group_items(found.items)
    table = Table(*(Column(name, justify="right" if name in ("times", "size each") else "left") for name in HEAD))
    for group in groups[:MOST_SHOWN]:
        table.add_row(*map(escape, group.cells))
    console.print(table)
    if len(groups) > MOST_SHOWN:
        remark(f"and {len(groups) - MOST_SHOWN} more on the page")
    if found.tested:
        by_attack = Table(
            "model", "attack", *(Column(name, justify="right") for name in ("members", "AUC", "found at 1 % false"))
        )
        for one in found.tested:
            for attack in one.attacks:
                auc, share = f"{attack.auc:.3f} ± {attack.error:.3f}", f"{100 * attack.found_at(0.01):.1f} %"
                by_attack.add_row(escape(one.subject), attack.name, str(one.samples), auc, share)
        console.print(by_attack)
    for done in found.inverted:
        remark(
            f"inversion of {done.subject} ({done.method}, batch of {done.batch}): correlation {done.similarity:.3f} with the "
            f"original, {done.chance:.3f} by chance"
        )
    for note in found.notes:
        remark(note)
    for line in found.words:
        remark(line)
    console.print(f"written to {page}", soft_wrap=True)
