"""``fedstill fuse``: several bundles and some unlabelled images become one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.table import Table

from fedstill.cli.options import reading_in
from fedstill.cli.progress import progress
from fedstill.config.trees import settings
from fedstill.core.console import console
from fedstill.core.errors import FedstillError

if TYPE_CHECKING:  # slow: brings torch
    from fedstill.bundles.fuse import Fused

__all__ = ["fuse"]

STEPS, DRAWS = 2000, 20_000  # fuse's own defaults, told without importing it (a test compares them)


def fuse(
    bundles: Annotated[list[Path], typer.Argument(metavar="BUNDLE...", help="What the sites packed.")],
    unlabelled: Annotated[
        list[str] | None,
        typer.Option(
            help="Images to distil on: a folder, a table, embedded:NAME; several times for several. Labels are ignored. "
            "Not needed where all bundles carry statistics (pack --statistics)."
        ),
    ] = None,
    student: Annotated[str | None, typer.Option(help="The student's model; the first teacher's by default.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("fused"),
    weighting: Annotated[
        str, typer.Option(help="How teachers count: uniform, projection, discriminator, vote, median...")
    ] = "uniform",
    validation: Annotated[
        list[str] | None,
        typer.Option(help="Labelled images, for early stopping and the figures; several times for several sets."),
    ] = None,
    ensemble: Annotated[str, typer.Option(help="What is averaged: probabilities, logits or losses.")] = "probabilities",
    start: Annotated[str, typer.Option(help="Where the student starts: auto, average, own, or a teacher's name.")] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Steps of distillation.")] = STEPS,
    targets: Annotated[
        str, typer.Option(help="Without images, who says what a drawn feature is: own (its site), label or ensemble.")
    ] = "own",
    draws: Annotated[int, typer.Option(min=1, help="Without images, how many features are drawn.")] = DRAWS,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="The student's images; the largest of the teachers' by default.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many unlabelled images.")] = None,
    norm: Annotated[str, typer.Option(help="The student's normalisation layers: batch, group or none.")] = "batch",
    reference: Annotated[str | None, typer.Option(help="The backbone that all sites described their domains with.")] = None,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code", help="Open bundles that hold or name programs. This runs their code: only from people you trust."
        ),
    ] = False,
    keep_ensemble: Annotated[
        bool, typer.Option("--keep-ensemble", help="Also write the teachers and their weighting, for use as an ensemble.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write model.onnx as well.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of the distillation, e.g. --set temperature=2 --set optimizer.lr=0.01, or of how images are read, "
            "e.g. --set data.range=[0,4095].",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the student's weights and the order of the images.")] = 0,
) -> None:
    """Fuse bundles of any architectures into one model, on unlabelled images or on features drawn from the bundles' statistics;
    writes the weights, a model card and fused.json."""
    # slow: they bring torch
    from fedstill.bundles.export import check_onnx
    from fedstill.bundles.folder import check_target
    from fedstill.bundles.fuse import fuse as fuse_models  # slow
    from fedstill.fusion.ensemble import Space  # slow

    reading, learning = reading_in(list(set_ or []))
    check_target(out)
    if onnx:
        check_onnx()
    if ensemble not in get_args(Space):
        raise FedstillError(f"--ensemble takes {', '.join(get_args(Space))}, not '{ensemble}'")
    with progress() as told:
        fused = fuse_models(
            bundles,
            unlabelled or None,
            student,
            weighting=weighting,
            validation=validation or None,
            ensemble=ensemble,  # type: ignore[arg-type]
            targets=targets,  # type: ignore[arg-type]
            draws=draws,
            distillation=settings({"steps": steps}, learning),
            reading=reading,
            start=start,
            norm=norm,
            image_size=image_size,
            limit=limit,
            reference=reference,
            trust_code=trust_code,
            keep_ensemble=keep_ensemble,
            device=device,
            seed=seed,
            progress=told,
        )
        fused.save(out, onnx=onnx)
    _say(fused)
    console.print(f"written to {out}", soft_wrap=True)


def _say(fused: Fused) -> None:
    from fedstill.bundles.card import table  # slow: brings torch

    shares = ", ".join(f"{name} {share:.3f}" for name, share in fused.teachers.items())
    console.print(f"teachers' mean weights: {shares}", soft_wrap=True, markup=False)
    rows = table(fused)
    if rows:
        shown = Table(title="Accuracy (%)")
        for column in rows[0]:
            shown.add_column(column, justify="left" if not column else "right")
        for row in rows[1:]:
            shown.add_row(*row)
        console.print(shown)
    done = fused.distilled
    console.print(
        f"the student started from {fused.start} and took {done.steps} steps; divergence from the ensemble "
        f"{done.first_loss:.3f} -> {done.last_loss:.3f}",
        soft_wrap=True,
    )
    if done.hurt:
        console.print("[yellow]warning:[/] the student is worse on the validation images than where it started")
