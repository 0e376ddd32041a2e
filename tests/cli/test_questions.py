"""A question is answered at once: help, lists and completions import nothing that is slow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from fedstill.algorithm import ALGORITHMS
from fedstill.bundles import fuse, pack
from fedstill.cli import app, completion
from fedstill.cli import fuse as fuse_command
from fedstill.cli import pack as pack_command

SLOW = ("torch", "numpy", "pydantic", "scipy", "sklearn", "matplotlib", "PIL", "datasets", "flwr", "plotly")
ASK = """
import sys
from fedstill.cli import main
sys.argv[0] = "fedstill"
try:
    main()
finally:
    found = [name for name in {slow} if name in sys.modules]
    if found:
        sys.exit("imported " + ", ".join(found))
"""


def ask(*words: str, cwd: Path | None = None, **environment: str) -> str:
    """What the command says in a process of its own, which must not import anything slow."""
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(slow=SLOW), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        cwd=cwd,
    )
    assert not done.returncode, done.stderr
    return done.stdout


def complete(line: str, cwd: Path | None = None) -> list[str]:
    """What bash is offered for a line."""
    words = line.split(" ")
    said = ask(cwd=cwd, _FEDSTILL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    return said.split()


def commands() -> list[list[str]]:
    """The words of every command there is."""
    found: list[list[str]] = [[]]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        found.append([name])
        found += [[name, below] for below in getattr(command, "commands", ())]
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_is_quick(words: list[str]) -> None:
    assert "Usage: fedstill" in ask(*words, "--help")


def test_lists_are_quick() -> None:
    assert ask("--version").startswith("fedstill ")
    assert "demo" in ask("presets")
    assert "fedd3a-table2" in ask("reproduce", "--list")
    assert "mlflow" in ask("parts", "trackers")
    assert "fedd3a-table2" in ask("parts", "studies")


def test_completion_is_quick(tmp_path: Path) -> None:
    assert "--install-completion" in ask("--help")
    assert complete("fedstill comp") == ["compare"]
    (tmp_path / "demonstration.toml").write_text("")
    (tmp_path / "demands").mkdir()
    (tmp_path / "demands" / "mine.toml").write_text("")
    assert complete("fedstill run dem", tmp_path) == ["demo", "demands/", "demonstration.toml"]
    assert complete("fedstill run demands/", tmp_path) == ["demands/mine.toml"]
    assert complete("fedstill compare demo --algorithms fedavg,fedp") == ["fedavg,fedprox"]
    assert complete("fedstill run demo --set algorithm.name=moo") == ["algorithm.name=moon"]
    assert complete("fedstill reproduce fedd3a-t") == ["fedd3a-table1", "fedd3a-table2"]
    assert complete("fedstill run demo --track ml") == ["mlflow"]
    assert complete("fedstill parts mer") == ["merges"]


def test_what_is_told_without_importing_is_what_there_is() -> None:
    assert {name for name in ALGORITHMS.names() if ALGORITHMS.origin(name) == "fedstill"} == set(completion.SYSTEMS)
    assert fuse.FuseOptions().distillation.steps == fuse_command.STEPS
    assert fuse.FuseOptions().draws == fuse_command.DRAWS
    assert pack.DESCRIPTIONS == pack_command.DESCRIPTIONS
    assert pack.LR == pack_command.LR
