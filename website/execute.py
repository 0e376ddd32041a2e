"""Run the notebooks and keep what they print and draw: ``python website/execute.py`` after changing one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

__all__ = ["NOTEBOOKS", "executed"]

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"


def executed(paths: list[Path], folder: Path) -> list[nbformat.NotebookNode]:
    """The notebooks after a run of all their cells in ``folder``: in one process, so that torch is imported once, each with
    names of its own."""
    notebooks = [nbformat.read(path, as_version=4) for path in paths]
    together = nbformat.v4.new_notebook()
    for notebook in notebooks:
        together.cells += [nbformat.v4.new_code_cell("%reset -f"), *notebook.cells]
    client = NotebookClient(together, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()  # cells are shared: each notebook has its outputs now
    return notebooks


def main() -> None:
    """Run all, and write each back with its outputs and without what changes from run to run."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    with tempfile.TemporaryDirectory() as folder:
        for path, notebook in zip(paths, executed(paths, Path(folder)), strict=True):
            for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
                cell.metadata.pop("execution", None)
                cell.execution_count = None
                for output in cell.outputs:
                    output.pop("execution_count", None) if output.output_type != "execute_result" else None
            nbformat.write(notebook, path)
            print(path.name)


if __name__ == "__main__":
    main()
