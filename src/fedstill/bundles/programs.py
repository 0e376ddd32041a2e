"""Networks whose code cannot be shared: TorchScript and ``torch.export`` files. They are programs: opening one runs it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from fedstill.core.errors import FedstillError, first_line
from fedstill.models.wrapped import Whole

__all__ = ["Program", "open_program", "program_kind"]

Kind = Literal["torchscript", "export"]


def program_kind(path: str | Path) -> Kind | None:
    """The kind of program that a file is, from its list of contents only; None for anything else."""
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
    """The program in ``data``. This runs code from the file: call it only if the user allowed it."""
    try:
        if kind == "torchscript":
            load: Callable[..., nn.Module] = torch.jit.load
            return load(io.BytesIO(data), map_location="cpu").eval()
        return torch.export.load(io.BytesIO(data)).module()
    except Exception as error:  # a program may raise anything when it is opened
        raise FedstillError(f"{whose}: the program cannot be opened: {first_line(error)}") from error


class Program(Whole):
    """A program as a network. It runs as it was saved, so its mode does not change."""

    has_modes = False

    def __init__(self, body: nn.Module, whose: str, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(body, whose, shape, classes)
        if next(self.parameters(), None) is None:
            self.anchor = nn.Parameter(torch.zeros(0), requires_grad=False)  # the device of a program without parameters

    def train(self, mode: bool = True) -> Program:
        self.training = False
        return self
