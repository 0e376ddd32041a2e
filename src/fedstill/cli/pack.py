"""``fedstill pack``: a site's trained model in one file, and what this file reveals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.options import reading_in, words
from fedstill.cli.progress import progress
from fedstill.config.trees import settings
from fedstill.core.console import console, megabytes
from fedstill.core.errors import FedstillError

__all__ = ["numbers", "pack"]

# as in fedstill.bundles.pack, repeated to avoid importing it
DESCRIPTIONS = ("projection", "discriminator")
LR = 0.01


def pack(
    model: Annotated[str | None, typer.Option(help="A built-in model, torchvision:NAME or module.path:callable.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Its weights: .safetensors, a .pt of a state_dict, or packaged weights such as imagenet.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The site's images: a folder (one subfolder per class), a table, embedded:NAME.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The bundle to write, such as site_a.fed.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How the data is read: data.range=[0,4095], data.unreadable=skip, ..."),
    ] = None,
    show: Annotated[list[Path] | None, typer.Option(help="Show what is in a bundle and what it reveals, and exit.")] = None,
    base: Annotated[Path | None, typer.Option("--from", help="Continue from the folder of a fused model.")] = None,
    program: Annotated[Path | None, typer.Option(help="A TorchScript or torch.export file instead of a model.")] = None,
    classes: Annotated[str | None, typer.Option(metavar="A,B,C", help="Class names in the order of the outputs.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="The height and width of the model's images.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 (grey) or 3 (colour).")] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="The mean in (x / 255 - mean) / std: one number, or one per channel. Default: the weights' own, or 0.5."
        ),
    ] = None,
    std: Annotated[str | None, typer.Option(help="The standard deviation in the same normalisation.")] = None,
    train: Annotated[
        str | None, typer.Option(metavar="all|head|last:N", help="The part to train; the rest is frozen and computed once.")
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Describe the site's features under a frozen trunk, to fuse without images.")
    ] = False,
    clip: Annotated[
        float | None, typer.Option(help="With --statistics: the largest norm with which an image's feature counts.")
    ] = None,
    norm: Annotated[str, typer.Option(help="The model's normalisation layers: batch, group or none.")] = "batch",
    option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the model.")] = None,
    name: Annotated[str | None, typer.Option(help="The site's name; by default the file's name.")] = None,
    counts: Annotated[bool, typer.Option("--counts/--no-counts", help="Include the number of samples of each class.")] = True,
    describe: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help=f"The description of the domain: {', '.join(DESCRIPTIONS)}, or none; projection unless --statistics.",
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The backbone of the projection, the same at all sites: a model, MODEL=FILE, a bundle.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Images from elsewhere, for the discriminator.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=0, help="Epochs to train first, on the labelled data (20 above a frozen trunk, 1 with --from)."),
    ] = None,
    lr: Annotated[float, typer.Option(help="The learning rate of this training.")] = LR,
    backbone_rate: Annotated[float, typer.Option(help="Factor of the learning rate below the head.")] = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Its batch size.")] = 64,
    seed: Annotated[int, typer.Option(help="The seed of its order.")] = 0,
) -> None:
    """Pack a site's trained model into one file: weights, classes, input format and a description of the domain; never data."""
    # slow: they import torch
    from fedstill.bundles.bundle import read_bundle
    from fedstill.bundles.pack import pack as pack_bundle
    from fedstill.bundles.words import in_words  # slow

    if show:
        for number, path in enumerate(show):
            console.print(("\n" if number else "") + in_words(read_bundle(path)), soft_wrap=True, markup=False)
        return
    if out is None:
        raise FedstillError("give the bundle to write: --out site.fed")
    reading, others = reading_in(list(set_ or []))
    if others:
        raise FedstillError(f"--set takes options of reading data, such as data.range=[0,4095], not '{others[0]}'")
    if clip is not None and not statistics:
        raise FedstillError("--clip is of the features that --statistics describes: give both")
    with progress(f"reading {data}" if data else "reading the model") as told:
        packed = pack_bundle(
            out,
            model=model,
            weights=weights,
            program=program,
            base=base,
            data=data,
            reading=reading,
            classes=words(classes or ""),
            image_size=image_size,
            channels=channels,
            norm=norm,
            options=settings({}, list(option or [])),
            mean=None if mean is None else numbers("--mean", mean),
            std=None if std is None else numbers("--std", std),
            train=train,
            statistics={"clip": clip} if clip is not None else statistics,
            name=name,
            counts=counts,
            describe=None if describe is None else [word for word in words(describe) if word != "none"],
            reference=reference,
            against=against,
            epochs=epochs,
            lr=lr,
            backbone_rate=backbone_rate,
            batch_size=batch_size,
            seed=seed,
            progress=told,
        )
    console.print(in_words(packed.bundle), soft_wrap=True, markup=False)
    if packed.accuracy is not None:
        console.print(f"The model's accuracy on the site's own images is {100 * packed.accuracy:.1f}% (not in the bundle).")
    if packed.doubtful:
        order = "are --classes in the order of the outputs, and are --mean and --std those of its training?"
        advice = "train longer (--epochs)" if packed.trained else order
        console.print(f"[yellow]warning:[/] that is near chance; {advice}", soft_wrap=True)
    console.print(f"written to {out} ({megabytes(out.stat().st_size)})", soft_wrap=True)


def numbers(option: str, text: str) -> float | list[float]:
    """One number, or several separated by commas.

    >>> numbers("--mean", "0.5"), numbers("--mean", "0.4, 0.5,0.6")
    (0.5, [0.4, 0.5, 0.6])
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise FedstillError(f"{option} takes a number, or one per channel separated by commas, not '{text}'") from None
    if not all(math.isfinite(value) for value in found):
        raise FedstillError(f"{option} takes finite numbers, not '{text}'")
    if option == "--std" and any(not value > 0 for value in found):
        raise FedstillError(f"--std takes numbers above zero, not '{text}'")
    return found[0] if len(found) == 1 else found
