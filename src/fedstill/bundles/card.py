"""What is written of a fused model: weights, facts, a card for people, ONNX on request."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import tomli_w
import torch

from fedstill.bundles.folder import CARD, FACTS, ONNX, WEIGHTS, check_target
from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.files import atomic_write
from fedstill.core.version import __version__
from fedstill.run.history import encoded

if TYPE_CHECKING:
    from fedstill.bundles.fuse.result import Fused

__all__ = ["check_onnx", "model_card", "onnx_bytes", "run_files", "save", "table"]

RUN_FILES = ("config.toml", "history.jsonl", "summary.json")


def save(fused: Fused, folder: Path, *, onnx: bool = False) -> Path:
    """Write the folder; the facts come last, so that a folder with facts is whole. What an earlier model left there goes."""
    check_target(folder)
    # a module of the caller's own keeps its names, so that it can be loaded without fedstill
    module = fused.network if fused.about is not None else fused.student
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    mark = digest(state)
    facts = _facts(fused, mark)
    files: dict[str, bytes | str] = {
        WEIGHTS: safetensors.torch.save(state, {"format": "pt", "digest": mark}),
        CARD: model_card(fused, facts),
        **run_files(fused),
        **({ONNX: onnx_bytes(fused)} if onnx else {}),
        FACTS: json.dumps(facts, indent=2) + "\n",
    }
    try:
        for name in (FACTS, ONNX, *RUN_FILES):
            (folder / name).unlink(missing_ok=True)
        for name, content in files.items():
            atomic_write(folder / name, content)
    except OSError as error:
        raise FedstillError(f"cannot write to {folder}: {error.strerror}") from error
    return folder


def _facts(fused: Fused, mark: str) -> dict[str, Any]:
    done = fused.distilled
    return {
        "fedstill": __version__,
        "digest": mark,
        "about": fused.about.model_dump(mode="json", exclude_none=True) if fused.about is not None else None,
        "classes": list(fused.classes),
        "start": fused.start,
        "teachers": [{**source, "weight": fused.teachers[source["name"]]} for source in fused.sources],
        "settings": fused.settings,
        "distilled": {"steps": done.steps, "first_loss": _number(done.first_loss), "last_loss": _number(done.last_loss)},
        "figures": [{"who": f.who, "kind": f.kind, "accuracy": f.accuracy, "mean": f.mean} for f in fused.figures],
    }


def run_files(fused: Fused) -> dict[str, str]:
    """With figures, the folder is also a run of one round, which ``fedstill report`` shows beside any others."""
    if not fused.figures:
        return {}
    by_kind = {figure.kind: figure for figure in fused.figures}
    student = by_kind["student"]
    sent = sum(source.get("bytes", 0) for source in fused.sources)
    line = {
        "round": 1,
        "accuracy": student.mean,
        "domains": student.accuracy,
        "merged_accuracy": by_kind["start"].mean,
        "ensemble_accuracy": by_kind["ensemble"].mean,
        "weights": fused.teachers,
        "weights_by_domain": fused.weights_by_set,
        "bytes_down": 0,
        "bytes_up": sent,
        "seconds": {},
        "clients": list(fused.teachers),
        "dropped": [],
    }
    summary = {
        "algorithm": "fuse",
        "seed": fused.settings["seed"],
        "rounds": 1,
        "final_accuracy": student.mean,
        "best_accuracy": student.mean,
        "best_round": 1,
        "rounds_to": {},
        "bytes_total": sent,
        "versions": {"fedstill": __version__, "torch": torch.__version__},
        "command": _command(fused),
    }
    config = {"seed": fused.settings["seed"], "rounds": 1, "algorithm": {"name": "fuse", **fused.settings}}
    texts = (tomli_w.dumps(config), encoded(line), json.dumps(summary) + "\n")
    return dict(zip(RUN_FILES, texts, strict=True))


def _command(fused: Fused) -> str:
    """How to do it again; where the unlabelled images are is not recorded."""
    files = [source.get("file", source["name"]) for source in fused.sources]
    model = fused.about.model.name if fused.about is not None and fused.about.model is not None else type(fused.student).__name__
    settings = fused.settings
    chosen = ["--student", model, "--weighting", settings["weighting"], "--ensemble", settings["ensemble"]]
    return shlex.join(["fedstill", "fuse", *files, "--unlabelled", "IMAGES", *chosen, "--seed", str(settings["seed"])])


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(fused: Fused) -> list[list[str]]:
    """The figures before and after, as rows of text; the first row is the heading.

    Accuracies are in per cent.
    """
    if not fused.figures:
        return []
    sets = list(fused.figures[0].accuracy)
    heading = ["", *sets, *(["mean"] if len(sets) > 1 else [])]
    rows = []
    for figure in fused.figures:
        values = [figure.accuracy[name] for name in sets] + ([figure.mean] if len(sets) > 1 else [])
        rows.append([figure.who, *(f"{100 * value:.1f}" for value in values)])
    return [heading, *rows]


def model_card(fused: Fused, facts: dict[str, Any]) -> str:
    """The card in Markdown: what was fused, the weights, the figures, how to use the model."""
    about = fused.about
    name = about.model.name if about is not None and about.model is not None else type(fused.student).__name__
    lines = [f"# A {name} fused from {len(fused.teachers)} models", ""]
    lines += [
        f"Made by fedstill {__version__}: the ensemble of the models below was distilled into one on {fused.settings['pool']} "
        "unlabelled samples. No training data was used.",
        "",
        "## What was fused",
        "",
        "| teacher | network | classes | samples | mean weight | digest |",
        "|---|---|---|---|---|---|",
    ]
    for source in facts["teachers"]:
        cells = [
            source["name"],
            source.get("model", "module"),
            str(len(source["classes"])),
            str(source.get("samples", "not said")),
            f"{source['weight']:.3f}",
            source.get("digest", "")[:12] or "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    settings = fused.settings
    done = fused.distilled
    lines += [
        "",
        f"Weighting `{settings['weighting']}`, ensemble of {settings['ensemble']}. The student started from {fused.start} and "
        f"took {done.steps} steps; its divergence from the ensemble went from {done.first_loss:.3f} to {done.last_loss:.3f}.",
        "",
        "## Classes",
        "",
        ", ".join(f"{i} {label}" for i, label in enumerate(fused.classes)),
    ]
    rows = table(fused)
    if rows:
        lines += ["", "## Accuracy before and after (%)", ""]
        heading, *body = rows
        lines += ["| " + " | ".join(heading) + " |", "|---" * len(heading) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in body]
        lines += ["", "The student was chosen by its accuracy on the same images, so its figure is a little too good."]
    lines += ["", "## Use", ""]
    if about is not None and about.model is not None:
        mean, std = about.mean, about.std
        lines += [
            f"Inputs are images of shape {tuple(about.shape)}, normalised as `(x / 255 - {mean}) / {std}`.",
            "",
            "```python",
            "from fedstill.bundles.folder import read_fused",
            "",
            'network = read_fused("this folder").network()',
            "logits = network(network.normalise(images))  # uint8 images (n, channels, height, width)",
            "```",
        ]
    else:
        lines += [f"The weights are those of your own `{name}`: `load_state_dict(safetensors.torch.load_file('{WEIGHTS}'))`."]
    return "\n".join(lines) + "\n"


def check_onnx() -> None:
    """Say before the work begins that ONNX cannot be written."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise FedstillError(f"writing ONNX needs {' and '.join(missing)}: pip install 'fedstill[onnx]'")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that the student does not use; its errors are raised all the same."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def onnx_bytes(fused: Fused) -> bytes:
    """The student as an ONNX program: normalised inputs in, logits out, any number of samples at a time."""
    check_onnx()
    module = fused.student.eval()
    example = torch.zeros(2, *fused.settings["shape"], device=next(module.parameters()).device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ONNX
        try:
            with _quiet():
                torch.onnx.export(
                    module,
                    (example,),
                    str(path),
                    input_names=["input"],
                    output_names=["logits"],
                    dynamic_shapes=({0: torch.export.Dim("samples")},),
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
        except Exception as error:  # the exporter raises whatever its passes raise
            raise FedstillError(f"the student cannot be written as ONNX: {first_line(error)}") from error
        return path.read_bytes()
