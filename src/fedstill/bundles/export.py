"""A trained model for use without fedstill: a program for PyTorch, one for ONNX, and a card that shows how to use both.

The program for PyTorch is a ``torch.export`` archive (``model.pt2``). Unlike a saved module, it needs neither the network's code
nor a pickle; unlike TorchScript, PyTorch still maintains it. The same export makes the ONNX file, so both compute the same. Both
take raw images: they include the normalisation and the class names.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.bundles.folder import CARD, ONNX
from fedstill.bundles.markdown import plain, table, with_article
from fedstill.bundles.use import classes_lines, normalisation, onnx_lines, program_lines, with_fedstill
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.files import atomic_write
from fedstill.core.scratch import Scratch
from fedstill.core.version import __version__
from fedstill.fusion.kept import Ensemble
from fedstill.models.classifier import Classifier

__all__ = ["ABOUT", "PROGRAM", "Served", "about_of", "check_onnx", "export", "onnx_bytes", "onnx_of", "program_bytes"]

PROGRAM = "model.pt2"
ABOUT = "about.json"  # inside the program: classes, shape, normalisation
TOLERANCE = 1e-3  # of logits, between the network and its exported program


class Served(nn.Module):
    """A network with its preprocessing: it takes raw uint8 images, raw rows or token ids, and returns logits.

    >>> from fedstill.data.inputs import Preprocessing
    >>> from fedstill.models import build
    >>> net = build("mlp", classes=2, shape=(1, 4, 4), seed=0).eval()
    >>> x = torch.randint(0, 256, (3, 1, 4, 4), dtype=torch.uint8)
    >>> torch.allclose(Served(Classifier(net, ("a", "b"), Preprocessing((1, 4, 4))))(x), net(net.normalise(x)), atol=1e-5)
    True
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        network, made = model.network, model.preprocessing
        if isinstance(network, Ensemble) and not network.alike:
            raise FedstillError("teachers with different inputs cannot be exported as one program")
        self.network, self.kind, self.missing = network, made.kind, list[int]()
        if made.kind == "image":
            means, stds = (torch.as_tensor(value, dtype=torch.float64).reshape(-1, 1, 1) for value in (network.mean, network.std))
            self.register_buffer("scale", (1 / (255 * stds)).float())
            self.register_buffer("shift", (-means / stds).float())
        elif made.rows is not None and made.rows.mean:
            self.kind, self.missing = "rows", list(made.rows.plan.missing)
            self.standardise = made.rows.standardise != "none"
            self.register_buffer("shift", torch.tensor(made.rows.mean, dtype=torch.float64))
            self.register_buffer("scale", torch.tensor(made.rows.std, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        x = images
        if self.kind == "image":
            x = x.float() * self.scale + self.shift
        elif self.kind == "rows":  # as fedstill.data.rows.prepared, without data-dependent branches
            numbers = len(self.shift)
            own, rest = x[:, :numbers], x[:, numbers:]
            absent = own.isnan()
            own = torch.where(absent, self.shift, own)
            own = (own - self.shift) / self.scale if self.standardise else own
            x = torch.cat([own.float(), absent[:, self.missing].float(), rest.float()], dim=1)
        logits: Tensor = self.network(x)
        return logits


def about_of(model: Classifier) -> dict[str, Any]:
    """The metadata of an exported model."""
    network = model.network
    images = {"mean": _plain(network.mean), "std": _plain(network.std)} if model.preprocessing.kind == "image" else {}
    made = {**images, **model.preprocessing.to_json()}
    return {"classes": list(model.classes), "shape": list(model.shape), **made, "fedstill": __version__}


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float) else list(value)


def _example(model: Classifier) -> Tensor:
    """Three inputs of the model's kind."""
    rng, made = torch.Generator().manual_seed(0), model.preprocessing
    if made.kind == "image":
        return torch.randint(0, 256, (3, *model.shape), generator=rng, dtype=torch.uint8)
    if made.kind == "text":
        return torch.randint(1, 100, (3, *model.shape), generator=rng, dtype=torch.int32)
    if made.rows is not None and made.rows.mean:
        width = len(made.rows.plan.numbers) + sum(len(words) for _, words in made.rows.plan.categories)
        return torch.rand(3, width, generator=rng, dtype=torch.float64)
    return torch.randn(3, *model.shape, generator=rng)


def _served(model: Classifier) -> Served:
    return Served(model).cpu().eval()


def program_bytes(model: Classifier) -> bytes:
    """The model as a ``torch.export`` archive; its logits are checked against the network's."""
    module, example = _served(model), _example(model)
    file = io.BytesIO()
    try:
        with _quiet():
            program = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("samples", min=1)},))
            torch.export.save(program, file, extra_files={ABOUT: json.dumps(about_of(model))})
            said = torch.export.load(io.BytesIO(file.getvalue())).module()(example[:2])
    except Exception as error:  # the exporter raises whatever the network's code makes it raise
        raise FedstillError(f"the model cannot be exported as a PyTorch program: {first_line(error)}") from error
    _check(model, module(example[:2]), said, PROGRAM)
    return file.getvalue()


def onnx_bytes(model: Classifier) -> bytes:
    """The model as an ONNX program, from raw inputs to logits, with any batch size; its metadata has the rest."""
    said = {key: json.dumps(value) for key, value in about_of(model).items()}
    return onnx_of(_served(model), _example(model), "images" if model.preprocessing.kind == "image" else "input", said)


def onnx_of(module: nn.Module, example: Tensor, name: str, said: Mapping[str, str]) -> bytes:
    """Any module as an ONNX program whose metadata is ``said``."""
    check_onnx()
    import onnx  # optional: the extra onnx

    with Scratch("onnx") as folder:
        path = folder / ONNX
        try:
            with _quiet():
                torch.onnx.export(
                    module,
                    (example,),
                    str(path),
                    input_names=[name],
                    output_names=["logits"],
                    dynamic_shapes=({0: torch.export.Dim("samples")},),
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
        except Exception as error:  # the exporter raises whatever its passes raise
            raise FedstillError(f"the model cannot be exported as ONNX: {first_line(error)}") from error
        written = onnx.load(path)
    onnx.helper.set_model_props(written, dict(said))
    return bytes(written.SerializeToString())


def _check(model: Classifier, wanted: Tensor, said: Tensor, what: str) -> None:
    if not torch.allclose(wanted, said, atol=TOLERANCE, rtol=TOLERANCE):
        far = float((wanted - said).abs().max())
        raise FedstillError(f"{what} would not agree with the network (logits differ by up to {far:.3g}): it is not written")


def check_onnx() -> None:
    """Raise before the work begins if ONNX cannot be written."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise FedstillError(f"writing ONNX needs {' and '.join(missing)}: pip install 'fedstill[onnx]'")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' remarks on packages that the model does not use; their errors are still raised."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "torch.export")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def export(model: Classifier, folder: str | Path, *, onnx: bool = False) -> Path:
    """Write ``model.pt2``, on request ``model.onnx``, and a card that shows how to use both without fedstill."""
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / PROGRAM).exists()):
        raise FedstillError(f"{folder} holds other files; give a new folder to write to")
    files: dict[str, bytes] = {PROGRAM: program_bytes(model)}
    if onnx:
        files[ONNX] = onnx_bytes(model)
    try:
        for name in (PROGRAM, ONNX, CARD):
            (folder / name).unlink(missing_ok=True)
        for name, content in files.items():
            atomic_write(folder / name, content)
        atomic_write(folder / CARD, export_card(model, files))
    except OSError as error:
        raise FedstillError(f"cannot write to {folder}: {error.strerror}") from error
    return folder


def export_card(model: Classifier, files: Mapping[str, bytes]) -> str:
    """The card in Markdown: what the model is, its inputs, its accuracy, and how to use it."""
    said, about = model.about, model.about.get("about")
    network = about.model.name if about is not None and about.model is not None else type(model.network).__name__
    lines = [f"# {_title(model, network)}", ""]
    made = ["Written by fedstill", __version__]
    if said.get("digest"):
        made.append(f"from the model with digest `{plain(str(said['digest'])[:16])}`")
    lines += [" ".join(made) + ".", ""]
    lines += table(["file", "what it is", "bytes", "SHA-256"], [_row(name, data) for name, data in files.items()])
    lines += ["", *classes_lines(model.classes)]
    if said.get("domains"):
        rows = [[name, f"{100 * value:.1f}"] for name, value in said["domains"].items()]
        lines += ["", "## Accuracy on the test sets (%)", "", *table(["domain", "accuracy"], rows)]
    if said.get("privacy"):
        lines += ["", "## Privacy", "", *(f"* {plain(text, 1000)}." for text in said["privacy"])]
    lines += ["", "## Inputs", "", _inputs(model), "", "## Use", ""]
    where = "the folder or file that this model was exported from"
    lines += ["With fedstill:", "", *with_fedstill(where, model.preprocessing)]
    for name, how, shown in (
        (PROGRAM, "With PyTorch alone", program_lines(model.preprocessing)),
        (ONNX, "With onnxruntime alone", onnx_lines(model.preprocessing)),
    ):
        if name in files and shown is not None:
            lines += ["", f"{how}, in the folder of this card:", "", *shown]
    return "\n".join(lines) + "\n"


def _title(model: Classifier, network: str) -> str:
    said = model.about
    if said.get("kind") == "run" and said.get("algorithm"):
        rounds = said.get("rounds")
        length = f" in {rounds} round{'' if rounds == 1 else 's'}" if rounds else ""
        return f"{_capital(with_article(network))} trained by {plain(said['algorithm'])}{length}"
    if said.get("kind") == "fused":
        return f"A fused {plain(network)}"
    if said.get("kind") == "bundle":
        return f"{plain(said.get('name', 'A site'))}: {with_article(network)}"
    return _capital(with_article(network))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(name: str, data: bytes) -> list[str]:
    what = {PROGRAM: "a torch.export program, PyTorch 2.6 or newer", ONNX: "an ONNX program"}[name]
    return [name, what, f"{len(data):,}", hashlib.sha256(data).hexdigest()]


def _inputs(model: Classifier) -> str:
    made = model.preprocessing
    if made.kind == "image":
        channels, height, width = model.shape
        kind = "grey" if channels == 1 else "colour"
        scale = f"`{normalisation(model.network.mean, model.network.std)}`"
        return (
            f"uint8 {kind} images (n, {channels}, {height}, {width}), for any n; the normalisation {scale} is inside. "
            "Resize images of another size first, by bilinear interpolation."
        )
    if made.text is not None:
        return f"int32 token ids (n, {model.shape[0]}), tokenizer `{plain(made.text.tokenizer)}`, 0 for padding."
    if made.rows is None or not made.rows.mean:
        return f"float32 rows (n, {model.shape[0]}), already standardised with the site's own means and standard deviations."
    plan = made.rows.plan
    words = f", then one-hot categories ({len(plan.categories)} columns)" if plan.categories else ""
    listed = ", ".join(plain(name) for name in plan.columns[:50]) if made.rows.named else ""
    return f"float64 rows: {len(plan.numbers)} raw numbers, NaN for a missing one{words}; standardisation is inside." + (
        f" Columns: {listed}." if listed else ""
    )
