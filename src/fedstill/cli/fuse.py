"""``fedstill fuse``: fuse several bundles into one model, on unlabelled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer
from rich.table import Table

from fedstill.cli.options import reading_in
from fedstill.cli.progress import progress
from fedstill.config.trees import settings
from fedstill.core.console import console, remark
from fedstill.core.errors import FedstillError

if TYPE_CHECKING:  # slow: imports torch
    from fedstill.bundles.fuse import Fused

__all__ = ["fuse"]

STEPS, DRAWS = 2000, 20_000  # fuse's own defaults, repeated to avoid importing it (a test compares them)


def fuse(
    bundles: Annotated[list[Path], typer.Argument(metavar="BUNDLE...", help="The bundles from the sites.")],
    unlabelled: Annotated[
        list[str] | None,
        typer.Option(
            help="Images to distil on: a folder, a table, embedded:NAME; can be repeated. Labels are ignored. "
            "Not needed if all bundles carry statistics (pack --statistics)."
        ),
    ] = None,
    student: Annotated[str | None, typer.Option(help="The student's model; by default the first teacher's.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("fused"),
    weighting: Annotated[
        str,
        typer.Option(
            help="How teachers are weighted: uniform, projection, discriminator, vote, median..., or auto: projection if all "
            "bundles describe their domains, else uniform."
        ),
    ] = "auto",
    validation: Annotated[
        list[str] | None,
        typer.Option(help="Labelled images, for early stopping and the figures; can be repeated."),
    ] = None,
    ensemble: Annotated[str, typer.Option(help="What is averaged: probabilities, logits or losses.")] = "probabilities",
    start: Annotated[str, typer.Option(help="The student's initial weights: auto, average, own, or a teacher's name.")] = "auto",
    line: Annotated[
        str,
        typer.Option(
            help="From the average of the teachers (0) towards the student distilled from it (1); auto: by the labelled images, "
            "or half way."
        ),
    ] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Distillation steps.")] = STEPS,
    targets: Annotated[
        str, typer.Option(help="Without images, the target of a drawn feature: own (its site's model), label or ensemble.")
    ] = "own",
    draws: Annotated[int, typer.Option(min=1, help="Without images, the number of features to draw.")] = DRAWS,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="The size of the student's images; by default the largest of the teachers'.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The maximum number of unlabelled images.")] = None,
    norm: Annotated[str, typer.Option(help="The student's normalisation layers: batch, group or none.")] = "batch",
    reference: Annotated[str | None, typer.Option(help="The backbone with which all sites described their domains.")] = None,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code", help="Open bundles that contain or name programs. This runs their code: only from people you trust."
        ),
    ] = False,
    keep_ensemble: Annotated[
        bool, typer.Option("--keep-ensemble", help="Also write the teachers and their weighting, for use as an ensemble.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of the distillation, e.g. --set temperature=2 --set optimizer.lr=0.01, of reading images, "
            "e.g. --set data.range=[0,4095], of the weighting, e.g. --set weighting_options.vote_norm=own, or of private votes, "
            "e.g. --set privacy.votes.sigma=20.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="The device to compute on: cpu, cuda, ...")] = "cpu",
    seed: Annotated[int, typer.Option(help="The seed of the student's weights and of the order of the images.")] = 0,
) -> None:
    """Fuse bundles of any architecture into one model, on unlabelled images or on features drawn from the bundles' statistics.
    Writes the weights, a model card and fused.json."""
    # slow: they import torch
    from fedstill.bundles.export import check_onnx
    from fedstill.bundles.folder import check_target
    from fedstill.bundles.fuse import fuse as fuse_models  # slow
    from fedstill.fusion.ensemble import Space  # slow

    reading, learning = reading_in(list(set_ or []))
    asked = [text for text in learning if text.partition("=")[0].strip().startswith(("privacy.votes", "weighting_options"))]
    named = settings({}, asked)
    votes, weighting_options = named.get("privacy", {}).get("votes", {}), named.get("weighting_options", {})
    for key, value in (("privacy.votes", votes), ("weighting_options", weighting_options)):
        if not isinstance(value, dict):
            raise FedstillError(f"{key} is a table, such as {key}.KEY=VALUE")
    if votes:
        if weighting not in ("auto", "uniform", "private-votes"):
            raise FedstillError(f"privacy.votes counts every teacher's vote once: remove --weighting {weighting}")
        if weighting_options:
            raise FedstillError("private votes have their options in privacy.votes: remove weighting_options")
        weighting = "private-votes"
    # `run` spells the options of the distillation with their table, so both spellings are understood
    learning = [text.strip().removeprefix("distillation.") for text in learning if text not in asked]
    check_target(out)
    if onnx:
        check_onnx()
    if ensemble not in get_args(Space):
        raise FedstillError(f"--ensemble takes {', '.join(get_args(Space))}, not '{ensemble}'")
    with progress("reading the bundles and the images" if unlabelled else "reading the bundles") as told:
        fused = fuse_models(
            bundles,
            unlabelled or None,
            student,
            weighting=weighting,
            weighting_options=votes or weighting_options or None,
            validation=validation or None,
            ensemble=ensemble,  # type: ignore[arg-type]
            targets=targets,  # type: ignore[arg-type]
            draws=draws,
            distillation=settings({"steps": steps}, learning),
            reading=reading,
            start=start,
            line=_line(line),
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


def _line(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise FedstillError(f"--line is auto or a number from 0 (the average) to 1 (the student), not '{text}'") from None


def _say(fused: Fused) -> None:
    from fedstill.bundles.card import table, taught_by  # slow: imports torch

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
    if "votes" in fused.settings:
        from fedstill.run.show import votes_in_words  # slow: imports torch

        remark(votes_in_words(fused.settings["votes"]))
    done = fused.distilled
    console.print(
        f"the student started from {fused.start} and took {done.steps} steps; divergence from the {taught_by(fused.settings)} "
        f"{done.first_loss:z.3f} -> {done.last_loss:z.3f}",
        soft_wrap=True,
    )
    taken = fused.settings["line"]
    if taken == 0:
        console.print("the result is that average itself (--line)")
    elif taken != 1:
        console.print(f"the result lies {taken:g} of the way from that average to the student (--line)", soft_wrap=True)
    before, after = ([row.mean for row in fused.figures if row.kind == kind] for kind in ("start", "student"))
    if before and after and after[-1] < before[-1]:
        console.print("[yellow]warning:[/] the result is worse on the labelled images than where the student started")
