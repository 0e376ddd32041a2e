"""Networks whose code cannot be shared: TorchScript and ``torch.export`` files. They are programs: opening one runs it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError
from fedstill.models.network import Network

__all__ = ["Plain", "Program", "open_program", "program_kind"]

Kind = Literal["torchscript", "export"]


def program_kind(path: str | Path) -> Kind | None:
    """Which kind of program a file is, told from its list of contents alone; None for anything else."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return None
    if any("/code/" in name for name in inside):
        return "torchscript"
    exported = ("serialized_exported_program.json", "archive_format")
    return "export" if any(name.rsplit("/", 1)[-1] in exported for name in inside) else None


def open_program(data: bytes, kind: Kind, whose: str) -> nn.Module:
    """The program in ``data``. This runs code from the file: call it only for those who allowed it."""
    try:
        if kind == "torchscript":
            return torch.jit.load(io.BytesIO(data), map_location="cpu").eval()
        return torch.export.load(io.BytesIO(data)).module()
    except Exception as error:  # whatever a program raises when it is opened, it cannot be used
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FedstillError(f"{whose}: the program cannot be opened: {line}") from error


class Plain(Network):
    """Any module from inputs to logits, as it is: it can teach or learn, but has no features to look at."""

    has_modes = True  # training and evaluation

    def __init__(self, body: nn.Module, classes: int | None, shape: tuple[int, ...], whose: str) -> None:
        super().__init__()
        self.body = body
        self.training = body.training  # whoever asks for its answers puts it back into the mode it was found in
        self.classes = _outputs(body, shape, whose, self.has_modes)
        if classes is not None and classes != self.classes:
            raise FedstillError(f"{whose} has {self.classes} outputs, and {classes} classes are named")
        self.whose = whose

    def features(self, x: Tensor) -> Tensor:
        raise FedstillError(f"{self.whose} has no features to look at, which this weighting needs")

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Program(Plain):
    """A program as a network. It runs as it was written down, so its mode is left alone."""

    has_modes = False

    def __init__(self, body: nn.Module, classes: int | None, shape: tuple[int, ...], whose: str) -> None:
        super().__init__(body, classes, shape, whose)
        if next(self.parameters(), None) is None:
            self.anchor = nn.Parameter(torch.zeros(0), requires_grad=False)  # says the device of a program without parameters

    def train(self, mode: bool = True) -> Program:
        self.training = False
        return self


def _outputs(body: nn.Module, shape: tuple[int, ...], whose: str, has_modes: bool) -> int:
    parameter = next(body.parameters(), None)
    inputs = torch.zeros(2, *shape, device=parameter.device if parameter is not None else "cpu")
    was_training = has_modes and body.training
    try:
        if was_training:
            body.eval()
        with torch.no_grad():
            result = body(inputs)
    except Exception as error:  # a foreign forward may raise anything
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FedstillError(f"{whose} does not take inputs of shape {tuple(shape)}: {line}") from error
    finally:
        if was_training:
            body.train()
    if not isinstance(result, Tensor) or result.ndim != 2 or len(result) != 2:
        got = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        raise FedstillError(f"{whose} returns {got} for two inputs; logits of shape (2, classes) are needed")
    return result.shape[1]
