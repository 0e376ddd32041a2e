"""Code for a card that shows how to use a model: with fedstill, plain PyTorch or onnxruntime. The tests run every line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedstill.bundles.markdown import plain
from fedstill.data.inputs import Preprocessing

__all__ = ["classes_lines", "normalisation", "onnx_lines", "program_lines", "with_fedstill"]

TEXT = """\
import re, zlib

def tokens(text):  # as the model was trained on: words and marks, hashed
    words = re.findall(r"\\w+|[^\\w\\s]", text.lower())[:{length}]
    ids = [1 + zlib.crc32(word.encode()) % {vocab} for word in words]
    return ids + [0] * ({length} - len(ids))
"""

# a missing number is NaN; a missing word has its own category if the training data had missing words
ROW = """\
numbers = [float("nan") if row.get(name) is None else float(row[name]) for name in about["rows"]["numbers"]]
words = [float((row.get(name) or "(missing)") == word) for name, listed in about["rows"]["categories"] for word in listed]"""


def classes_lines(classes: Sequence[str], most: int = 200) -> list[str]:
    """The classes in the order of the outputs, each with its number unless that is its name.

    >>> classes_lines(["0", "1"])[-1], classes_lines(["cat", "1"])[-1]
    ('0, 1', '0 cat, 1')
    """
    listed = ", ".join(str(i) if str(i) == name else f"{i} {plain(name)}" for i, name in enumerate(classes[:most]))
    more = f" and {len(classes) - most} more, which are in the files" if len(classes) > most else ""
    return ["## Classes", "", listed + more]


def normalisation(mean: float | Sequence[float], std: float | Sequence[float]) -> str:
    """How bytes are normalised, to four digits; the files have all of them.

    >>> normalisation(0.4980392156862745, [0.5, 0.25])
    '(x / 255 - 0.498) / [0.5, 0.25]'
    """
    shown = [f"{one:.4g}" if isinstance(one, float | int) else f"[{', '.join(f'{o:.4g}' for o in one)}]" for one in (mean, std)]
    return f"(x / 255 - {shown[0]}) / {shown[1]}"


def with_fedstill(place: str, made: Preprocessing) -> list[str]:
    """With fedstill, which loads the network, its classes and its preprocessing."""
    asked = {"image": '["a.png", "b.png"]', "text": '["a text", "another"]'}.get(made.kind, '"rows.csv"')
    return [
        "```python",
        "import fedstill",
        "",
        f'model = fedstill.load("{place}")',
        f"model.predict({asked})                      # class names",
        f"model.predict({asked}, probabilities=True)  # a tensor (n, classes)",
        "```",
    ]


def program_lines(made: Preprocessing) -> list[str] | None:
    """With PyTorch alone; None if texts need a tokenizer other than fedstill's own."""
    found = _input(made, "torch")
    if found is None:
        return None
    before, x = found
    return [
        "```python",
        "import json",
        "",
        *before[0],
        "import torch",
        *before[1],
        "",
        'files = {"about.json": ""}',
        'model = torch.export.load("model.pt2", extra_files=files).module()',
        'about = json.loads(files["about.json"])',
        *x,
        "with torch.no_grad():",
        "    probabilities = model(x).softmax(1)[0]",
        "best = int(probabilities.argmax())",
        'print(about["classes"][best], f"{float(probabilities[best]):.3f}")',
        "```",
    ]


def onnx_lines(made: Preprocessing) -> list[str] | None:
    """With onnxruntime alone; None if texts need a tokenizer other than fedstill's own."""
    found = _input(made, "numpy")
    if found is None:
        return None
    before, x = found
    numpy = [] if "import numpy as np" in before[0] else ["import numpy as np"]
    return [
        "```python",
        "import json",
        "",
        *before[0],
        *numpy,
        "import onnxruntime",
        *before[1],
        "",
        'session = onnxruntime.InferenceSession("model.onnx")',
        "about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}",
        *x,
        "logits = session.run(None, {session.get_inputs()[0].name: x})[0][0]",
        "probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()",
        "best = int(probabilities.argmax())",
        'print(about["classes"][best], f"{float(probabilities[best]):.3f}")',
        "```",
    ]


def _input(made: Preprocessing, kind: str) -> tuple[tuple[list[str], list[str]], list[str]] | None:
    """Imports before and after those of the runtime, and the lines that make one input ``x``."""
    if made.kind == "image":
        channels, height, width = made.shape
        mode = "L" if channels == 1 else "RGB"
        lines = [
            f'image = Image.open("image.png").convert("{mode}").resize(({width}, {height}), Image.Resampling.BILINEAR)',
            f"x = np.asarray(image).reshape(1, {height}, {width}, {channels}).transpose(0, 3, 1, 2)  # uint8, scaled inside",
        ]
        return (["import numpy as np"], ["from PIL import Image"]), [
            *lines,
            *(["x = torch.tensor(x)"] if kind == "torch" else []),
        ]
    if made.text is not None:
        if made.text.tokenizer != "hash":
            return None
        words = TEXT.format(length=made.text.length, vocab=made.text.vocab - 1).splitlines()
        return ([words[0]], []), ["", *words[2:], "", _array(kind, '[tokens("some text")]', "int32")]
    if made.rows is None or not made.rows.mean:
        return ([], []), [_array(kind, f"[[0.0] * {made.shape[0]}]", "float32")]
    plan = made.rows.plan
    if not made.rows.named:
        return ([], []), [_array(kind, f"[[0.0] * {len(plan.numbers)}]", "float64") + "  # standardised by the model"]
    row = {name: round(mean, 4) for name, mean in zip(plan.numbers, made.rows.mean, strict=True)}
    shown = json.dumps({**row, **{name: words[0] for name, words in plan.categories}})
    return ([], []), [f"row = {shown}", *ROW.splitlines(), _array(kind, "[numbers + words]", "float64")]


def _array(kind: str, values: str, dtype: str) -> str:
    call, of = ("torch.tensor", "torch") if kind == "torch" else ("np.array", "np")
    return f"x = {call}({values}, dtype={of}.{dtype})"
