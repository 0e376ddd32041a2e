"""Run folders as the run loop writes them, made up: for the tests of what reads them."""

from __future__ import annotations

import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

DOMAINS = ("mnist", "optdigits", "blended")
CLASSES = [str(c) for c in range(10)]
CEILINGS = {"fedavg": 0.72, "feddf": 0.80, "fedd3a": 0.86, "dafkd": 0.83}


def config(algorithm: str = "feddf", seed: int = 0, rounds: int = 8, **extra: Any) -> dict[str, Any]:
    return {
        "seed": seed,
        "rounds": rounds,
        "data": {"domains": [f"embedded:{d}" for d in DOMAINS], "image_size": 16, "limit": 600},
        "clients": {"per_domain": 2, "partition": {"kind": "dirichlet", "alpha": 0.3}, "fraction": 1.0},
        "model": {"name": "cnn"},
        "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.02}},
        "algorithm": {"name": algorithm, "temperature": 1.0},
        **extra,
    }


def history(algorithm: str, seed: int, rounds: int, *, rich: bool = True) -> list[dict[str, Any]]:
    """Rounds of a run that learns: a saturating curve with noise, distillation above the merged model."""
    draw = np.random.default_rng([seed, len(algorithm), rounds])
    ids = [f"{d}-{k}" for d in DOMAINS for k in range(2)]
    lines = []
    for r in range(1, rounds + 1):
        level = CEILINGS.get(algorithm, 0.75) * (1 - math.exp(-3.0 * r / max(rounds, 6)))
        domains = {d: float(np.clip(level - 0.06 * i + draw.normal(0, 0.01), 0, 1)) for i, d in enumerate(DOMAINS)}
        accuracy = float(np.mean(list(domains.values())))
        line: dict[str, Any] = {
            "round": r,
            "accuracy": accuracy,
            "domains": domains,
            "merged_accuracy": None if algorithm == "fedavg" else accuracy - 0.04 + float(draw.normal(0, 0.01)),
            "ensemble_accuracy": None if algorithm == "fedavg" else accuracy + 0.03,
            "bytes_down": 6 * 410_000,
            "bytes_up": 6 * 410_000 + (50_000 if algorithm == "fedd3a" else 0),
            "seconds": {
                "train": 2.0 + float(draw.uniform()),
                "fuse": 0.1 if algorithm == "fedavg" else 1.2 + float(draw.uniform()),
                "evaluate": 0.3,
            },
            "clients": ids,
            "dropped": [{"client": ids[r % 6], "reason": "weights are not finite"}] if r % 4 == 0 else [],
        }
        if rich and algorithm != "fedavg":
            weights = draw.dirichlet([5.0] * len(ids))
            line["weights"] = dict(zip(ids, map(float, weights), strict=True))
            line["weights_by_domain"] = {
                d: dict(zip(ids, map(float, draw.dirichlet([6.0 if i.startswith(d) else 1.0 for i in ids])), strict=True))
                for d in DOMAINS
            }
            if algorithm == "dafkd":
                line["line"] = judged(accuracy, draw)
            line["losses"] = {"distillation": 1.5 * math.exp(-r / rounds), "local": 2.0 * math.exp(-2 * r / rounds)}
        lines.append(line)
    return lines


def judged(accuracy: float, draw: np.random.Generator) -> dict[str, Any]:
    """What a judge of five points says: the middle is delivered, the student carried on."""
    scores = [accuracy + gain + float(draw.normal(0, 0.001)) for gain in (-0.04, -0.02, 0.0, -0.01, -0.03)]
    return {
        "judge": "clients",
        "points": [0.0, 0.25, 0.5, 0.75, 1.0],
        "scores": {"cnn": [float(np.clip(score, 0, 1)) for score in scores]},
        "delivered": {"cnn": 0.5},
        "carried": {"cnn": 1.0},
    }


def confusion(seed: int) -> dict[str, Any]:
    """Of each class nine of twelve samples are correct, two are predicted as the next class and one as any."""
    draw = np.random.default_rng(seed)
    tables = {}
    for domain in DOMAINS:
        table = 9 * np.eye(10, dtype=int) + 2 * np.roll(np.eye(10, dtype=int), 1, axis=1)
        table[np.arange(10), draw.integers(0, 10, 10)] += 1
        tables[domain] = table.tolist()
    return {"classes": CLASSES, "domains": tables}


def feature_map(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    points = lambda d: (draw.normal(size=(40, 2)) + 3 * d).round(3).tolist()
    domains = {name: {"real": points(d), "virtual": points(d)} for d, name in enumerate(DOMAINS)}
    return {"round": 8, "explained": 0.41, "domains": domains}


def summary(algorithm: str, seed: int, lines: list[dict[str, Any]], targets: tuple[float, ...]) -> dict[str, Any]:
    best = max(lines, key=lambda line: line["accuracy"])
    return {
        "algorithm": algorithm,
        "seed": seed,
        "rounds": len(lines),
        "final_accuracy": lines[-1]["accuracy"],
        "best_accuracy": best["accuracy"],
        "best_round": best["round"],
        "rounds_to": {str(t): next((x["round"] for x in lines if x["accuracy"] >= t), None) for t in targets},
        "bytes_total": sum(line["bytes_down"] + line["bytes_up"] for line in lines),
        "versions": {"fedstill": "0.1.0", "torch": "2.6.0", "python": "3.11"},
    }


def clients(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    held = []
    for d in DOMAINS:
        shares = draw.dirichlet([0.3] * 2, size=10)
        for k in range(2):
            counts = [int(60 * share[k]) for share in shares]
            held.append({"id": f"{d}-{k}", "domain": d, "prototype": "cnn", "samples": sum(counts), "counts": counts})
    return {"classes": CLASSES, "clients": held}


def png(size: int = 64, seed: int = 0) -> bytes:
    """A small picture of noise."""
    return grey_png(np.random.default_rng(seed).integers(0, 255, (size, size), dtype=np.uint8))


def grey_png(pixels: np.ndarray) -> bytes:
    """A grey picture, written by hand so that no imaging library is needed."""
    size = len(pixels)
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", pixels.shape[1], size, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def write_run(
    folder: Path,
    algorithm: str = "feddf",
    seed: int = 0,
    rounds: int = 8,
    *,
    rich: bool = True,
    targets: tuple[float, ...] = (0.5, 0.7),
    **extra: Any,
) -> Path:
    """A whole run folder; ``extra`` goes into its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = history(algorithm, seed, rounds, rich=rich)
    (folder / "config.toml").write_text(tomli_w.dumps(config(algorithm, seed, rounds, **extra)))
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(summary(algorithm, seed, lines, targets)))
    if rich:
        (folder / "clients.json").write_text(json.dumps(clients(seed)))
        (folder / "confusion.json").write_text(json.dumps(confusion(seed)))
        if algorithm == "fedvirtual":
            (folder / "features.json").write_text(json.dumps(feature_map(seed)))
        if algorithm == "dafkd":
            (folder / "samples").mkdir(exist_ok=True)
            for r in (1, rounds):
                (folder / "samples" / f"round_{r:04d}.png").write_bytes(png(seed=r))
    return folder


def write_comparison(
    folder: Path,
    algorithms: tuple[str, ...] = ("fedavg", "feddf", "fedd3a"),
    seeds: tuple[int, ...] = (0, 1, 2),
    rounds: int = 8,
) -> Path:
    """A folder of runs as ``compare`` leaves it."""
    for algorithm in algorithms:
        for seed in seeds:
            write_run(folder / algorithm / f"seed{seed}", algorithm, seed, rounds)
    (folder / "summary.json").write_text(json.dumps({"algorithms": list(algorithms), "seeds": list(seeds)}))
    (folder / "table.md").write_text("| method |\n|---|\n")
    return folder
