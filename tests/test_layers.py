"""The house has one direction: what is lower knows nothing of what is higher, and no two rooms import each other."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fedstill"

# from the ground up; what stands on one floor does not know its neighbours
FLOORS: list[set[str]] = [
    {"core"},
    {"data"},
    {"models"},
    {"training"},
    {"config"},
    {"task"},
    {"algorithm"},
    {"local"},
    {"fusion"},
    {"algorithms"},
    {"engine"},
    {"run"},
    {"report", "bundles"},
    {"reproduce", "audit"},
    {"api"},
    {"flower"},
    {"cli"},
    {"moved"},
    {"__init__"},
    {"__main__"},
]
HEIGHT = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imports(folder: Path = SOURCE) -> dict[tuple[str, str], list[str]]:
    """Every import between rooms (packages, or modules beside them): (who, whom) -> where; those in functions included."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            for name in _named(node, inside):
                if name[0] != "fedstill":
                    continue
                here, there = inside[0], name[1] if len(name) > 1 else "__init__"
                if here != there:
                    found[here, there].append(f"{path.relative_to(folder)}:{node.lineno}")  # type: ignore[attr-defined]
    return found


def _named(node: ast.AST, inside: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    if node.level:
        package = ("fedstill", *inside)[: len(inside) + 1 - node.level + (inside[-1] == "__init__") * 0]
        return [(*package, *(node.module or "").split("."))] if node.module else [package]
    if node.module == "fedstill":
        return [("fedstill", alias.name) for alias in node.names]
    return [tuple((node.module or "").split("."))]


def upward(edges: dict[tuple[str, str], list[str]]) -> list[str]:
    """The imports of something that stands on the same floor or higher."""
    return [f"{who} imports {whom}: {', '.join(where)}" for (who, whom), where in edges.items() if HEIGHT[whom] >= HEIGHT[who]]


def test_every_room_has_its_floor() -> None:
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == set(HEIGHT)


def test_nothing_imports_what_is_above_it() -> None:
    edges = imports()
    assert len(edges) > 60  # the reader of imports sees them
    assert upward(edges) == []


def test_an_upward_import_would_be_found(tmp_path: Path) -> None:
    for room in ("core", "run"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("")
    (tmp_path / "core" / "message.py").write_text("def late():\n    from fedstill.run.loop import run\n    return run\n")
    (tmp_path / "run" / "loop.py").write_text("from fedstill.core import message\nfrom ..core.message import late\n")
    assert upward(imports(tmp_path)) == ["core imports run: core/message.py:2"]


REASONS = ("slow", "optional", "platform")


def function_imports() -> list[tuple[str, int, str]]:
    """Imports inside functions: (file, line, the source line with the line above it)."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        lines = text.splitlines()
        for scope in ast.walk(ast.parse(text)):
            if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(scope):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    first = node.lineno - 1
                    while re.match(r"\s*(from|import|#|$)", lines[first - 1]):  # one comment serves a block of imports
                        first -= 1
                    nearby = "\n".join(lines[first : node.end_lineno])
                    found.append((str(path.relative_to(SOURCE)), node.lineno, nearby))
    return found


def test_imports_inside_functions_say_why() -> None:
    """Only what is slow, optional or a platform's own is imported late, and a comment beside it says which."""
    silent = [f"{path}:{line}" for path, line, nearby in function_imports() if not any(reason in nearby for reason in REASONS)]
    assert silent == []


def test_no_file_is_too_long_to_read_at_once() -> None:
    most = 400
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    texts = {path: found.decode() for path in files if b"\0" not in (found := path.read_bytes())}  # weights are no text
    assert {path.suffix for path in texts} >= {".py", ".js", ".css", ".html", ".toml"}
    long = {str(path.relative_to(SOURCE)): n for path, text in texts.items() if (n := len(text.splitlines())) > most}
    assert long == {}
