"""The files of a fused model: weights, facts, a card for people, ONNX on request."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import tomli_w
import torch

from fedstill.bundles.export import onnx_bytes, onnx_of
from fedstill.bundles.folder import CARD, FACTS, ONNX, WEIGHTS, check_target
from fedstill.bundles.markdown import plain, with_article
from fedstill.bundles.markdown import table as markdown_table
from fedstill.bundles.use import classes_lines, normalisation, onnx_lines, with_fedstill
from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write
from fedstill.core.version import __version__
from fedstill.data.inputs import Preprocessing
from fedstill.models.classifier import Classifier
from fedstill.run.history import encoded

if TYPE_CHECKING:
    from fedstill.bundles.fuse.result import Fused

__all__ = ["model_card", "run_files", "save", "table", "taught_by"]

RUN_FILES = ("config.toml", "history.jsonl", "summary.json")


def save(fused: Fused, folder: Path, *, onnx: bool = False) -> Path:
    """Write the folder; the facts come last, so that a folder with facts is complete. Files of an earlier model are removed."""
    check_target(folder)
    # the caller's own module keeps its tensor names, so that it can be loaded without fedstill
    module = fused.network if fused.about is not None else fused.student
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    mark = digest(state)
    facts = _facts(fused, mark)
    files: dict[str, bytes | str] = {
        WEIGHTS: safetensors.torch.save(state, {"format": "pt", "digest": mark}),
        CARD: model_card(fused, facts, onnx),
        **run_files(fused),
        **({ONNX: _onnx(fused)} if onnx else {}),
        FACTS: json.dumps(facts, indent=2) + "\n",
    }
    try:
        for name in (FACTS, ONNX, *RUN_FILES):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "ensemble", ignore_errors=True)
        if fused.ensemble is not None:
            fused.ensemble(folder / "ensemble")
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
    """With figures, the folder is also a run of one round, which ``fedstill report`` can show beside others."""
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
    """The command to repeat the fusion; the path of the unlabelled images is not recorded."""
    files = [source.get("file", source["name"]) for source in fused.sources]
    model = fused.about.model.name if fused.about is not None and fused.about.model is not None else type(fused.student).__name__
    settings = fused.settings
    chosen = ["--student", model, "--weighting", settings["weighting"], "--ensemble", settings["ensemble"]]
    images = [] if "targets" in settings else ["--unlabelled", "IMAGES"]
    return shlex.join(["fedstill", "fuse", *files, *images, *chosen, "--seed", str(settings["seed"])])


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(fused: Fused) -> list[list[str]]:
    """The figures before and after, as rows of text; the first row is the heading. Accuracies are in per cent."""
    if not fused.figures:
        return []
    sets = list(fused.figures[0].accuracy)
    heading = ["", *sets, *(["mean"] if len(sets) > 1 else [])]
    rows = []
    for figure in fused.figures:
        values = [figure.accuracy[name] for name in sets] + ([figure.mean] if len(sets) > 1 else [])
        rows.append([figure.who, *(f"{100 * value:.1f}" for value in values)])
    return [heading, *rows]


def model_card(fused: Fused, facts: dict[str, Any], onnx: bool = False) -> str:
    """The card in Markdown: what was fused, the weights, the figures, how to use the model."""
    about = fused.about
    name = about.model.name if about is not None and about.model is not None else type(fused.student).__name__
    titled = with_article(name)
    lines = [f"# {titled[0].upper()}{titled[1:]} fused from {len(fused.teachers)} models", ""]
    lines += [
        f"Made by fedstill {__version__}: the models below were distilled into one on {_pool_words(fused.settings)}. "
        "No training data was used.",
        "",
        "## What was fused",
        "",
    ]
    rows = [
        [
            source["name"],
            source.get("model", "module"),
            len(source["classes"]),
            source.get("samples", "not given"),
            f"{source['weight']:.3f}",
            source.get("digest", "")[:12] or "-",
        ]
        for source in facts["teachers"]
    ]
    lines += markdown_table(["teacher", "network", "classes", "samples", "mean weight", "digest"], rows)
    settings = fused.settings
    done = fused.distilled
    lines += [
        "",
        f"{_weighting_words(settings)}The student started from {plain(fused.start)} "
        f"and took {done.steps} steps; its divergence from the {taught_by(settings)} went from {done.first_loss:z.3f} to "
        f"{done.last_loss:z.3f}." + _line_words(settings["line"]),
        "",
        *classes_lines(fused.classes),
    ]
    figures = table(fused)
    if figures:
        lines += ["", "## Accuracy before and after (%)", "", *markdown_table(figures[0], figures[1:])]
        lines += ["", "The student was selected by its accuracy on the same images, so its figure is slightly optimistic."]
    lines += ["", "## Use", ""]
    if about is not None and about.model is not None:
        lines += [f"Inputs are images of shape {tuple(about.shape)}, normalised as `{normalisation(about.mean, about.std)}`.", ""]
        lines += with_fedstill("this folder", Preprocessing(tuple(about.shape)))
        lines += [
            "",
            "For use without fedstill, `fedstill export` writes programs for PyTorch and ONNX, with a card.",
        ]
        shown = onnx_lines(Preprocessing(tuple(about.shape))) if onnx else None
        if shown is not None:
            lines += ["", "With onnxruntime alone, in this folder:", "", *shown]
    else:
        lines += [f"The weights are those of your own `{name}`: `load_state_dict(safetensors.torch.load_file('{WEIGHTS}'))`."]
    return "\n".join(lines) + "\n"


def taught_by(settings: Mapping[str, Any]) -> str:
    """What the student learned from: the ensemble, or the targets of the drawn features.

    >>> taught_by({}), taught_by({"targets": "own"}), taught_by({"targets": "ensemble"})
    ('ensemble', 'targets', 'ensemble')
    """
    return "targets" if settings.get("targets", "ensemble") != "ensemble" else "ensemble"


def _weighting_words(settings: Mapping[str, Any]) -> str:
    """How the teachers were combined; nothing if each target is that of a single site."""
    if taught_by(settings) != "ensemble":
        return ""
    return f"Weighting `{settings['weighting']}`, ensemble of {settings['ensemble']}. "


def _line_words(line: float) -> str:
    return "" if line == 1 else f" The model lies {line:g} of the way from that start to the distilled student."


def _pool_words(settings: dict[str, Any]) -> str:
    if "targets" not in settings:
        return f"{settings['pool']} unlabelled samples"
    said = {
        "own": "the prediction of its own site's model",
        "label": "the class that it was drawn for",
        "ensemble": "the prediction of the ensemble",
    }
    return (
        f"{settings['pool']} features drawn from the sites' statistics under their common frozen trunk; the target of each was "
        f"{said[settings['targets']]}. No images were used"
    )


def _onnx(fused: Fused) -> bytes:
    """The student as an ONNX program: it takes raw images, or the inputs of the caller's own module."""
    if fused.about is not None:
        return onnx_bytes(Classifier(fused.network, fused.classes, Preprocessing(tuple(fused.about.shape))))
    module = fused.student.eval()
    example = torch.zeros(2, *fused.settings["shape"], device=next(module.parameters()).device)
    return onnx_of(module, example, "input", {"classes": json.dumps(list(fused.classes)), "fedstill": json.dumps(__version__)})
