"""Build the wheel and the sdist, check them, and try each in a fresh environment: ``make package``.

Nothing of the repository is on the path of the trial: it runs in an empty folder with the environment's own command.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a command and stop at a failure."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def trial(package: Path, folder: Path) -> None:
    """Install a package in a fresh environment, and run the demo there."""
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", folder / "venv")
    start = time.perf_counter()
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", package)
    installed = time.perf_counter()
    command = [folder / "venv" / "bin" / "fedstill", "demo", "--out", folder / "demo"]
    run(*command, cwd=folder)
    assert (folder / "demo" / "report.html").stat().st_size > 10_000, "the demo left no page"
    done = time.perf_counter()
    size = package.stat().st_size / 1000
    print(f"{package.name}: {size:,.0f} kB; installed in {installed - start:.0f} s, demo in {done - installed:.0f} s")


def main() -> None:
    """Build, check, try."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "-q", "--no-isolation", "--outdir", DIST, ROOT)
    packages = [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]
    run(sys.executable, "-m", "twine", "check", "--strict", *packages)
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            trial(package, Path(folder))


if __name__ == "__main__":
    main()
