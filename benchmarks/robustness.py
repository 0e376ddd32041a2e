"""What users, disks and accidents do, done on purpose: mutated configurations, damaged files, kills at random moments.

    python benchmarks/robustness.py [--seed 0] [--only kills] [--case 17]
    python benchmarks/robustness.py --smoke     a run of seconds: a few cases of each kind

Each case ends well in one of three ways: it is refused in one line, it is done with a warning, or what comes out is bit for bit
what comes out without the damage. A traceback, a wrong result without a word, and anything left behind are faults; they are
printed with the number by which ``--case`` repeats them, and the program ends with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

CASES = {"configurations": 300, "bundles": 200, "models": 100, "histories": 100, "kills": 20}
FEW = {"configurations": 8, "bundles": 6, "models": 4, "histories": 4, "kills": 1}
PATIENCE = 15  # seconds after which a mutated configuration that is a valid, longer run is believed
ROUNDS = 30  # of a run that is killed

SMALL = {
    "rounds": 1,
    "data": {"domains": ["embedded:optdigits", "embedded:mnist"], "image_size": 8, "channels": 1, "limit": 60, "test_limit": 20},
    "model": {"name": "mlp", "options": {"hidden": [8]}},
    "local": {"epochs": 1, "batch_size": 30, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}},
    "clients": {"per_domain": 2, "fraction": 0.5},
    "engine": {"threads": 1},
}
POOL = {"server": "embedded:rotated", "pool_limit": 40}
DISTIL = {"steps": 3, "batch_size": 20, "optimizer": {"name": "adam", "lr": 0.001}}
VALID = [
    {"algorithm": {"name": "fedavg", "merge": "examples"}},
    {"algorithm": {"name": "fedprox", "mu": 0.1}},
    {"algorithm": {"name": "feddf", "distillation": DISTIL, "weighting": "uniform"}, "data": POOL},
    {"algorithm": {"name": "fedd3a", "distillation": DISTIL}, "data": POOL, "model": {"name": "cnn-small", "options": {}}},
    {"algorithm": {"name": "fedgen", "steps": 3}, "clients": {"partition": {"kind": "dirichlet", "alpha": 0.5}}},
]
ODD: list[Any] = [-1, 0, 1, 2, 3, -0.5, 0.5, 1e-9, 1e30, math.nan, math.inf, "", "nonsense", "null", True, [], ["x"], {"x": 1}]
ODD += [[[1]], [math.nan], {"x": {"y": math.inf}}, "../../etc", "os:system", "é\n\x1b[31m", [0, 0], [1, "a"], 2**70]


# -- one command, in this process ------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """A run that goes on: not an Exception, which the engine would take for a client's failure."""


@dataclass
class Said:
    """How a command ended, and what it said."""

    code: int | None  # None for one that was still at work
    text: str = ""
    fault: str | None = None


def ask(*words: object, patience: float = 0) -> Said:
    """Call ``fedstill`` as the shell would, but in this process."""
    from fedstill.cli import main  # slow: brings torch

    def ring(number: int, frame: object) -> None:
        raise TooLong

    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["fedstill", *map(str, words)]
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, patience)
    code: int | None = 0
    fault = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except TooLong:
        code = None
    except Exception:  # what no user should see
        fault = "a traceback: " + traceback.format_exc().strip().splitlines()[-1][:300]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.argv = before
    said = err.getvalue()
    if fault is None and code not in (0, 2, None):
        fault = f"status {code}: {said.strip()[-200:]}"
    if fault is None and code == 2 and said.startswith("fedstill:") and len(said.strip().splitlines()) > 1:
        fault = f"more than one line: {said!r}"
    return Said(code, out.getvalue() + said, fault)


# -- the kinds -------------------------------------------------------------------------------------------------------------------


@dataclass
class Kind:
    """A kind of mistreatment: what is prepared once, and one case, which says how it ended."""

    prepare: Callable[[Path], Any]
    case: Callable[[random.Random, Path, Any], tuple[str, str | None]]  # how it ended, and the fault if it is one


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key, from the root."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def changed(tree: dict[str, Any], path: tuple[str, ...], change: Callable[[dict[str, Any], str], None]) -> None:
    """Change the table that holds the key at ``path``."""
    for part in path[:-1]:
        tree = tree[part]
    change(tree, path[-1])


def mutated(chance: random.Random) -> tuple[str, bool]:
    """The text of a configuration that was valid, and whether it must be refused."""
    from fedstill.core.nested import laid_over  # slow for those who ask for help

    tree = laid_over(SMALL, chance.choice(VALID))
    tree = tomllib.loads(tomli_w.dumps(tree))
    must = False
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        place = chance.choice(list(leaves(tree)))
        way = chance.choice(["rename", "replace", "replace", "replace", "delete", "exchange"])
        if way == "rename":
            changed(tree, place, lambda table, key: table.update({key + "x": table.pop(key)}))
            must = must or place[:2] != ("model", "options")
        elif way == "replace":
            odd = chance.choice(ODD)
            changed(tree, place, lambda table, key: table.update({key: odd}))  # noqa: B023
            break  # the tree below may be gone
        elif way == "delete":
            changed(tree, place, lambda table, key: table.pop(key))
        else:
            other = tree
            for part in chance.choice(list(leaves(tree))):
                other = other[part]
            kept = other
            changed(tree, place, lambda table, key: table.update({key: kept}))  # noqa: B023
            break
    try:
        text = tomli_w.dumps(tree)
    except (TypeError, ValueError, RecursionError):
        text = "rounds = "
    if chance.random() < 0.15:  # and what an editor or a disk does to the text
        raw = bytearray(text.encode())
        for _ in range(chance.choice([1, 3])):
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        return raw.decode("latin-1"), False
    return text, must


def configuration(chance: random.Random, folder: Path, prepared: Any) -> tuple[str, str | None]:
    """Run a mutated configuration."""
    text, must = mutated(chance)
    (folder / "a.toml").write_text(text, encoding="latin-1" if "\x80" <= max(text, default="") <= "\xff" else "utf-8")
    said = ask("run", folder / "a.toml", "--out", folder / "run", patience=PATIENCE)
    how = {0: "valid, and run", 2: "refused", None: "valid, and still at work"}.get(said.code, "ended")
    if said.fault is None and must and said.code != 2:
        said.fault = "a renamed key was accepted"
    return how, said.fault


def damaged(chance: random.Random, data: bytes) -> bytes:
    """A copy that is not what it was: flipped bits, a part that is lost, zeroed, doubled or exchanged."""
    raw = bytearray(data)
    ways = ["flip", "flip", "flip", "header", "cut", "zero", "append", "exchange", "middle"]
    while bytes(raw) == data:
        way, place = chance.choice(ways), chance.randrange(len(raw))
        size = chance.choice([1, 4, 64, 1000])
        if way == "flip":
            for _ in range(chance.choice([1, 1, 2, 8])):
                raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        elif way == "header":
            raw[chance.randrange(min(len(raw), 700))] ^= 1 << chance.randrange(8)
        elif way == "cut":
            raw = raw[:place]
        elif way == "zero":
            raw[place : place + size] = bytes(len(raw[place : place + size]))
        elif way == "append":
            raw += bytes(chance.randrange(256) for _ in range(size))
        elif way == "exchange":
            other = chance.randrange(len(raw))
            raw[place], raw[other] = raw[other], raw[place]
        else:
            del raw[place : place + size]
    return bytes(raw)


FUSING = ("--unlabelled", "embedded:optdigits#test", "--limit", "40", "--steps", "2")


def sites(folder: Path) -> tuple[Path, Path]:
    """Two bundles, which are fused where nothing is damaged: so a refusal is about the damage."""
    found = []
    for name in ("one", "two"):
        path = folder / f"{name}.fed"
        words = ["pack", "--model", "mlp", "--option", "hidden=[8]", "--data", "embedded:optdigits#test", "--epochs", "1"]
        said = ask(*words, "--describe", "none", "--out", path)
        assert said.code == 0, said
        found.append(path)
    said = ask("fuse", *found, *FUSING, "--out", folder / "fused")
    assert said.code == 0, said
    return found[0], found[1]


def bundle(chance: random.Random, folder: Path, prepared: tuple[Path, Path]) -> tuple[str, str | None]:
    """Fuse a damaged bundle with a sound one."""
    sound, other = prepared
    (folder / "two.fed").write_bytes(damaged(chance, other.read_bytes()))
    said = ask("fuse", sound, folder / "two.fed", *FUSING, "--out", folder / "fused")
    if said.code == 0:
        return "accepted", "a damaged bundle was fused"
    return "refused", said.fault


def finished(folder: Path) -> Path:
    """A run."""
    (folder / "a.toml").write_text(tomli_w.dumps(SMALL))
    said = ask("run", folder / "a.toml", "--out", folder / "run")
    assert said.code == 0, said
    return folder / "run"


def model(chance: random.Random, folder: Path, prepared: Path) -> tuple[str, str | None]:
    """Pack a damaged model of a run, and predict with it."""
    shutil.copytree(prepared, folder / "run")
    weights = folder / "run" / "model.safetensors"
    weights.write_bytes(damaged(chance, weights.read_bytes()))
    from PIL import Image  # slow for those who ask for help

    Image.new("L", (8, 8), 90).save(folder / "a.png")
    packing = ["pack", "--model", "mlp", "--option", "hidden=[8]", "--weights", weights, "--data", "embedded:optdigits#test"]
    for words in ([*packing, "--describe", "none", "--out", folder / "a.fed"], ["predict", folder / "run", folder / "a.png"]):
        said = ask(*words)
        if said.fault is not None:
            return "fault", said.fault
        if said.code == 0 and "warning" not in said.text:
            return "accepted", f"{words[0]} took a damaged model without a word"
        if said.code == 0:
            return "taken with a warning", None
    return "refused", None


HALF, WHOLE = 2, 4  # rounds that an interrupted run has done, and all that it has to do
MOON = {**SMALL, "rounds": WHOLE, "algorithm": {"name": "moon"}}


@dataclass
class Interrupted:
    """A run that was stopped between two rounds, and what it comes to when nothing is damaged."""

    folder: Path
    config: Path
    weights: bytes
    history: list[Any] = field(default_factory=list)


def interrupted(folder: Path) -> Interrupted:
    """Stop a run after half of its rounds, and run a copy to the end."""
    # slow: they bring torch
    from fedstill.run.configuration import parse
    from fedstill.run.listener import Listener
    from fedstill.run.loop import run

    class Stop(Listener):
        def round(self, line: Any) -> None:
            if line["round"] == HALF:
                raise TooLong

    config = folder / "a.toml"
    config.write_text(tomli_w.dumps(MOON))
    with contextlib.suppress(TooLong):
        run(parse(MOON), folder / "half", listeners=[Stop()])
    shutil.copytree(folder / "half", folder / "whole")
    said = ask("run", config, "--out", folder / "whole", "--resume")
    assert said.code == 0, said
    return Interrupted(
        folder / "half", config, (folder / "whole" / "model.safetensors").read_bytes(), course(folder / "whole" / "history.jsonl")
    )


def course(path: Path) -> list[Any]:
    """What a history says, without times."""
    from fedstill.run.history import read_history  # slow for those who ask for help

    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_history(path)]


def history(chance: random.Random, folder: Path, prepared: Interrupted) -> tuple[str, str | None]:
    """Go on with a run whose history or checkpoints are damaged."""
    out = folder / "run"
    shutil.copytree(prepared.folder, out)
    files = [out / "history.jsonl", *sorted((out / "checkpoint").iterdir()), *sorted((out / "clients").rglob("*.safetensors"))]
    for path in chance.sample(files, chance.choice([1, 1, 2])):
        path.write_bytes(damaged(chance, path.read_bytes()))
    said = ask("run", prepared.config, "--out", out, "--resume")
    if said.fault is not None or said.code == 2:
        return "refused", said.fault
    same = (out / "model.safetensors").read_bytes() == prepared.weights and course(out / "history.jsonl") == prepared.history
    if "warning" in said.text:
        return "gone on with a warning" + (", to the same weights" if same else ""), None
    return ("gone on, to the same end", None) if same else ("accepted", "another result, without a word")


# -- kills -----------------------------------------------------------------------------------------------------------------------

KILLED = [
    {**SMALL, "rounds": ROUNDS, "algorithm": {"name": "moon"}},
    {**SMALL, "rounds": ROUNDS, "engine": {"threads": 1, "workers": 2}},
    {**SMALL, "rounds": ROUNDS, "algorithm": {"name": "feddf", "distillation": DISTIL}, "data": {**SMALL["data"], **POOL}},  # type: ignore[dict-item]
]


def left_alone(folder: Path) -> list[tuple[Path, bytes, list[Any]]]:
    """The runs that will be killed, left alone once."""
    found = []
    for number, tree in enumerate(KILLED):
        config = folder / f"{number}.toml"
        config.write_text(tomli_w.dumps(tree))
        said = ask("run", config, "--out", folder / str(number))
        assert said.code == 0, said
        found.append(
            (config, (folder / str(number) / "model.safetensors").read_bytes(), course(folder / str(number) / "history.jsonl"))
        )
    return found


def kill(chance: random.Random, folder: Path, prepared: list[tuple[Path, bytes, list[Any]]]) -> tuple[str, str | None]:
    """Kill a run at a random moment between its first round and its last, go on with it, and compare."""
    config, weights, whole = chance.choice(prepared)
    scratch, out = folder / "tmp", folder / "run"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedstill", "run", str(config), "--out", str(out)]
    after = chance.randrange(1, ROUNDS - 2)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and _rounds(out) < after:
        time.sleep(0.002)
    time.sleep(chance.random() * 0.05)
    early = process.poll() is not None
    process.kill()
    process.wait()
    done = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True)
    if done.returncode:
        return "not gone on with", done.stderr.strip()[-300:]
    if (out / "model.safetensors").read_bytes() != weights or course(out / "history.jsonl") != whole:
        return "another result", f"killed after round {after}: weights or history differ"
    left = [str(path) for path in (*scratch.iterdir(), *out.rglob(".*.part"), *config.parent.glob(".*.part"))]
    if left:
        return "left behind", ", ".join(left)
    time.sleep(0.2)
    if _users(scratch):
        return "left behind", f"processes {_users(scratch)}"
    return "had ended before" if early else "killed and gone on with, to the same weights", None


def _rounds(out: Path) -> int:
    path = out / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _users(scratch: Path) -> list[int]:
    """Processes that were started with this folder for scratch files."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if f"TMPDIR={scratch}\0".encode() in place.read_bytes():
                found.append(int(place.parent.name))
    return found


KINDS = {
    "configurations": Kind(finished, configuration),  # a run first: an alarm must not interrupt the import of torch
    "bundles": Kind(sites, bundle),
    "models": Kind(finished, model),
    "histories": Kind(interrupted, history),
    "kills": Kind(left_alone, kill),
}


def main() -> None:
    """All cases, or those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--case", type=int, help="one case alone, with --only")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        global PATIENCE  # what takes long is believed sooner
        PATIENCE = 2
        del KILLED[1:]
    faults = 0
    with tempfile.TemporaryDirectory(prefix="robustness-") as place:
        os.environ.setdefault("FEDSTILL_CACHE", str(Path(place) / "cache"))
        for name in [arguments.only] if arguments.only else KINDS:
            faults += treat(name, Path(place) / name, arguments)
    if faults:
        sys.exit(1)


def treat(name: str, place: Path, arguments: argparse.Namespace) -> int:
    """All cases of one kind; the number of faults."""
    kind, count = KINDS[name], (FEW if arguments.smoke else CASES)[name]
    (place / "prepared").mkdir(parents=True)
    prepared = kind.prepare(place / "prepared")
    ends: Counter[str] = Counter()
    faults, clock = 0, time.monotonic()
    for number in range(count) if arguments.case is None else [arguments.case]:
        folder = place / str(number)
        folder.mkdir()
        how, fault = kind.case(random.Random(f"{arguments.seed} {name} {number}"), folder, prepared)
        ends[how] += 1
        if fault is not None:
            faults += 1
            print(f"{name} --case {number}: {fault}", flush=True)
        shutil.rmtree(folder)
    told = ", ".join(f"{n} {how}" for how, n in ends.most_common())
    print(f"{name}: {sum(ends.values())} cases in {time.monotonic() - clock:.0f} s, {faults} faults ({told})", flush=True)
    return faults


if __name__ == "__main__":
    main()
