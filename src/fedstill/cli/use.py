"""``fedstill predict``, ``evaluate`` and ``export``: the use of trained models."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from fedstill.cli.options import reading_in
from fedstill.core.console import console, megabytes, remark
from fedstill.core.errors import FedstillError

if TYPE_CHECKING:  # slow: imports torch
    from fedstill.models.classifier import Classifier
    from fedstill.models.confusion import Confusion

__all__ = ["evaluate", "export", "predict"]

MOST_SHOWN = 20  # classes of a matrix on the console

Folder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run or a fused model, or a bundle.")]
Model = Annotated[str | None, typer.Option(help="The name of the model, if a run has several.")]
Reads = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="How images are read: data.range=[0,4095], data.unreadable=skip."),
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Open a model that contains or names a program. This runs its code.")
]


def predict(
    folder: Folder,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Images or folders of images; a table of rows; texts, or - to read lines."),
    ],
    model: Model = None,
    out: Annotated[Path | None, typer.Option(help="Write a CSV file instead of lines.")] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Show all classes, not only the most likely.")] = False,
    set_: Reads = None,
    trust_code: TrustCode = False,
) -> None:
    """Predict the class of images, texts or rows, one line each: the input, the class, and its probability."""
    # slow: they import torch
    from fedstill.bundles.loading import load
    from fedstill.data.images import left_out

    found, skips = _reading(load(folder, model=model, trust_code=trust_code), set_)
    names, given = _asked(found, inputs)
    skipped: dict[int, str] | None = {} if skips else None
    shares = found.predict(given, probabilities=True, skipped=skipped)
    if skipped:
        if not len(shares):
            raise FedstillError("none of the images can be decoded")
        warnings.warn(left_out("the inputs", list(skipped.values())), stacklevel=1)
        names = [name for i, name in enumerate(names) if i not in skipped]
    names = names or [f"row {number}" for number in range(1, len(shares) + 1)]
    said = [(found.classes[int(row.argmax())], float(row.max())) for row in shares]
    if out is not None:
        head = ["input", "class", "probability", *(found.classes if probabilities else ())]
        rows = [
            [name, word, f"{share:.6g}", *([f"{p:.6g}" for p in row.tolist()] if probabilities else [])]
            for name, (word, share), row in zip(names, said, shares, strict=True)
        ]
        _write_csv(out, head, rows)
        console.print(f"written to {out}", soft_wrap=True)
        return
    for name, (word, share), row in zip(names, said, shares, strict=True):
        more = "  " + ", ".join(f"{c} {p:.3f}" for c, p in zip(found.classes, row.tolist(), strict=True)) if probabilities else ""
        remark(f"{name}  {word}  {share:.3f}{more}")


def _reading(found: Classifier, assignments: list[str] | None) -> tuple[Classifier, bool]:
    """The model with images read as the user says, and whether images that cannot be decoded are left out."""
    from fedstill.core.options import validated  # slow: imports pydantic
    from fedstill.data.reading import Reading

    said, others = reading_in(assignments or [])
    others += [f"data.{name}" for name in said if name not in ("range", "unreadable")]
    if others:
        raise FedstillError(f"--set takes data.range and data.unreadable here, not '{others[0]}'")
    if said and found.preprocessing.kind != "image":
        raise FedstillError(f"--set says how images are read, but the model takes {found.preprocessing.wanted}")
    reading = validated(Reading, said, "data")
    made = found.preprocessing if reading.range is None else replace(found.preprocessing, range=reading.range)
    return replace(found, preprocessing=made), reading.unreadable == "skip"


def _asked(found: Classifier, inputs: list[str]) -> tuple[list[str], Any]:
    """The names of the inputs, and the inputs; rows have no names."""
    from fedstill.data.inputs import image_files  # slow: imports torch

    kind = found.preprocessing.kind
    if kind == "image":
        files = image_files(inputs)
        return [str(file) for file in files], files
    if kind == "text":
        texts = [line.rstrip("\n") for text in inputs for line in (sys.stdin if text == "-" else [text])]
        return [text if len(text) <= 60 else text[:57] + "..." for text in texts], texts
    if len(inputs) != 1:
        raise FedstillError("the model takes rows: give one table, such as rows.csv")
    return [], Path(inputs[0])


def _write_csv(path: Path, head: list[str], rows: list[list[str]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([head, *rows])
    except OSError as error:
        raise FedstillError(f"cannot write {path}: {error.strerror}") from error


def evaluate(
    folder: Folder,
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA...", help="Labelled data: a folder (one subfolder per class), a table, embedded:NAME."),
    ],
    model: Model = None,
    label: Annotated[str | None, typer.Option(help="The column of a table that holds the classes.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write all figures as a page, such as figures.html.")] = None,
    set_: Reads = None,
    trust_code: TrustCode = False,
) -> None:
    """Evaluate a model on labelled data: accuracy, figures by class, and the confusion matrix."""
    # slow: they import torch
    from fedstill.bundles.loading import load
    from fedstill.core.files import atomic_write
    from fedstill.report.evaluation import evaluation_page
    from fedstill.run.pulse import alive

    found, skips = _reading(load(folder, model=model, trust_code=trust_code), set_)
    figures = {}
    for source in data:
        with alive(remark, partial("evaluating on {}".format, source)):
            one = figures[source] = found.evaluate(source, label=label, unreadable="skip" if skips else "error")
        _show(source, one)
    if out is not None:
        atomic_write(out, json.dumps({source: one.to_json() for source, one in figures.items()}, indent=2) + "\n")
        console.print(f"written to {out}", soft_wrap=True)
    if page is not None:
        atomic_write(page, evaluation_page(str(folder), figures))
        console.print(f"the page: {page}", soft_wrap=True)


def _show(source: str, found: Confusion) -> None:
    accuracy = f"{100 * found.accuracy:.1f} %" if found.accuracy is not None else "-"
    remark(f"{source}: accuracy {accuracy} of {found.samples:,} samples")
    by_class = Table("class", *(Column(name, justify="right") for name in ("samples", "precision %", "recall %", "F1 %")))
    for row in found.rows():
        by_class.add_row(*map(escape, row))
    console.print(by_class)
    if len(found.classes) > MOST_SHOWN:
        for truth, taken, count in found.worst[:MOST_SHOWN]:
            remark(f"{truth} predicted as {taken}: {count}")
        return
    matrix = Table("is \\ predicted as", *(Column(escape(name), justify="right") for name in found.classes))
    for name, row in zip(found.classes, found.matrix.tolist(), strict=True):
        matrix.add_row(escape(name), *(str(count) if count else "." for count in row))
    console.print(matrix)


def export(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="The folder to write (MODEL/export).")] = None,
    model: Model = None,
    onnx: Annotated[
        bool | None, typer.Option("--onnx/--no-onnx", help="Write model.onnx (default: if onnx is installed).")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Export a model for use without fedstill: model.pt2 for PyTorch, model.onnx, and a card that shows how to use them."""
    # slow: they import torch
    from fedstill.bundles.export import export as export_model
    from fedstill.bundles.loading import load

    installed = find_spec("onnx") is not None and find_spec("onnxscript") is not None
    target = out or (folder / "export" if folder.is_dir() else folder.with_name(f"{folder.stem}-export"))
    export_model(load(folder, model=model, trust_code=trust_code), target, onnx=installed if onnx is None else onnx)
    for file in sorted(target.iterdir()):
        console.print(f"{file.name}  {megabytes(file.stat().st_size)}")
    if onnx is None and not installed:
        remark("no model.onnx: pip install 'fedstill[onnx]'")  # markup would take the brackets for a style
    console.print(f"written to {target}", soft_wrap=True)
