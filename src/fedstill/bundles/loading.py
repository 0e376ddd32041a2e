"""``fedstill.load``: open the model of any run, fused model or bundle. Only this module opens them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
from pydantic import ValidationError
from torch import Tensor

from fedstill.algorithm import Reply
from fedstill.bundles.bundle import About, Architecture, as_described, build_network, read_bundle
from fedstill.bundles.folder import FACTS, WEIGHTS, FusedFolder, read_fused
from fedstill.config.trees import read
from fedstill.core.errors import FedstillError, first_line, unknown
from fedstill.core.message import Message, State
from fedstill.data.inputs import Preprocessing
from fedstill.data.rows import Rows
from fedstill.data.text import TextOptions
from fedstill.fusion.kept import INDEX, Ensemble, Speakers
from fedstill.fusion.merges.matching import resized
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import report_of
from fedstill.models import build
from fedstill.models.classifier import Classifier
from fedstill.models.files import read_state
from fedstill.models.network import Network
from fedstill.models.text import encoder_folder, is_encoder
from fedstill.run.budgets import budget_words
from fedstill.run.history import read_history, sound_summary

__all__ = ["load", "read_ensemble"]

ENSEMBLE = "ensemble"  # the folder of a kept ensemble, and its name as a model
Found = tuple[Network, About, dict[str, Any]]  # the network, its description, and its origin


def load(path: str | Path, *, model: str | None = None, trust_code: bool = False, device: str = "cpu") -> Classifier:
    """The model in a run folder, in the folder of a fused model, in a bundle or in a file of weights from one of them.

    The result has ``predict(images)``, ``classes`` and ``network`` (in eval mode). If a run has several models, ``model`` names
    one; ``model="ensemble"`` is the kept ensemble (``run --keep-ensemble``). A model that contains or names code is opened only
    with ``trust_code``. Damaged files are refused.

    >>> import tempfile, fedstill
    >>> small = ["rounds=1", "algorithm.name=fedavg", "data.limit=60", "data.test_limit=20"]
    >>> folder = fedstill.run("demo", tempfile.mkdtemp(), settings=small).folder
    >>> found = load(folder)
    >>> import torch
    >>> found.classes[:3], found.shape, len(found.predict(torch.zeros(4, 28, 28, 3, dtype=torch.uint8)))
    (('0', '1', '2'), (3, 28, 28), 4)
    """
    place = Path(path)
    if place.is_dir():
        network, about, origin = _from_folder(place, model, trust_code)
    elif not place.exists():
        raise FedstillError(f"no such file or folder: {place}")
    elif place.suffix != ".safetensors":
        network, about, origin = _from_bundle(place, trust_code)
    elif place.name == WEIGHTS and (place.parent / FACTS).exists():
        network, about, origin = _from_fused(read_fused(place.parent), trust_code)
    else:
        network, about, origin = _from_file(place, trust_code)
    made = origin.pop("made", None) or Preprocessing(tuple(about.shape), range=about.range)
    return Classifier(network.to(device), tuple(about.classes), made, {**origin, "about": about})


def _from_folder(folder: Path, model: str | None, trust_code: bool) -> Found:
    if (folder / INDEX).exists():
        return _from_ensemble(folder, trust_code, {})
    if model == ENSEMBLE and (folder / ENSEMBLE / INDEX).exists():
        return _from_ensemble(folder / ENSEMBLE, trust_code, _of_run(folder) if (folder / "history.jsonl").exists() else {})
    if (folder / FACTS).exists():
        return _from_fused(read_fused(folder), trust_code)
    several = {file.stem: file for file in sorted((folder / "models").glob("*.safetensors"))}
    if model is not None and model not in several:
        raise unknown("model of this run", model, several) if several else FedstillError(f"{folder} has no models by name")
    if several and model is None and not (folder / WEIGHTS).exists():
        raise FedstillError(f"{folder} has {len(several)} models: name one (model): {', '.join(several)}")
    file = several[model] if model is not None else folder / WEIGHTS
    if not file.exists():
        begun = (folder / "history.jsonl").exists()
        why = "its run has not finished, or writes no model" if begun else "it is not the folder of a run or of a fused model"
        raise FedstillError(f"{folder} has no {WEIGHTS}: {why}")
    return _from_file(file, trust_code, _of_run(folder))


def read_ensemble(folder: str | Path, trust_code: bool = False) -> tuple[Ensemble, dict[str, Any]]:
    """The ensemble that a run or a fusion kept (:mod:`fedstill.fusion.kept`), and what its teachers' files say about inputs and
    classes."""
    folder = Path(folder)
    try:
        index = json.loads((folder / INDEX).read_text())
        teachers, members = [], []
        said: dict[str, Any] = {}
        for told in index["teachers"]:
            network, parts, said = _member(folder, told["file"], trust_code)
            reply = Reply(told["name"], "", told["prototype"], int(told.get("samples", 0)), _message(parts, index["weighting"]))
            places = None if told["places"] is None else tuple(map(int, told["places"]))
            members.append(network)
            teachers.append(Teacher(told["name"], network.eval, reply if "samples" in told else None, places))
        backbones = {prototype: _member(folder, file, trust_code)[0] for prototype, file in index["backbones"].items()}
        speakers = Speakers(
            teachers,
            index["weighting"],
            index["options"],
            index["space"],
            float(index["temperature"]),
            index["direction"],
            int(index["round"]),
            int(index["rounds"]),
            tuple(map(str, index["classes"])),
            {prototype: network.eval for prototype, network in backbones.items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedstillError(f"{folder} is not a readable ensemble: {first_line(error)}") from error
    if not members:
        raise FedstillError(f"{folder} is an ensemble without teachers")
    return Ensemble(members, speakers).eval(), {**said, "classes": list(speakers.classes)}


def _message(parts: Mapping[str, Tensor], weighting: str) -> Callable[[], Message]:
    report = report_of(weighting)
    message = Message.of(**({report: dict(parts)} if report is not None and parts else {}))
    return lambda: message


def _member(folder: Path, file: str, trust_code: bool) -> tuple[Network, State, dict[str, Any]]:
    """The network of a file, its site's report, and the file's metadata."""
    if Path(file).name != file:
        raise FedstillError(f"{folder / INDEX} names a file outside its folder")
    state, said = _read(folder / file)
    parts = Message(state)
    about = _described(said, Path(file).stem, folder / file)
    _check_code(about, str(folder / file), trust_code)
    return _built(about, parts.group("model"), str(folder / file)), parts.group("report"), said


def _from_ensemble(folder: Path, trust_code: bool, origin: Mapping[str, Any]) -> Found:
    network, said = read_ensemble(folder, trust_code)
    about = About(
        name=str(origin.get("name", folder.resolve().name)),
        model=Architecture(name=f"ensemble of {len(network.members)}"),
        classes=said["classes"],
        shape=said["shape"],
        mean=said["mean"],
        std=said["std"],
    )
    return network, about, {**origin, "kind": "ensemble", "made": _preprocessing(about, said, folder)}


def _from_bundle(path: Path, trust_code: bool) -> Found:
    bundle = read_bundle(path)
    return bundle.network(trust_code), bundle.about, {"kind": "bundle", "name": bundle.name, "digest": bundle.digest}


def _from_fused(fused: FusedFolder, trust_code: bool) -> Found:
    _check_code(fused.about, str(fused.folder), trust_code)
    scores = {f["who"]: f["accuracy"] for f in fused.facts.get("figures", []) if f.get("kind") == "student"}
    accuracies = scores.get("student", {})
    return (
        fused.network(),
        fused.about,
        {"kind": "fused", "name": fused.folder.name, "digest": fused.digest, "domains": accuracies},
    )


def _from_file(path: Path, trust_code: bool, origin: Mapping[str, Any] | None = None) -> Found:
    state, said = _read(path)
    if not {"model", "classes", "shape"} <= said.keys():
        raise FedstillError(f"{path} does not say which network it holds, so no run wrote it; `fedstill pack` can read it")
    beside = path.parent if path.parent.name != "models" else path.parent.parent
    if "options" not in said:  # an older file: the configuration has the rest
        said = {**_of_config(beside), **said}
    about = _described(said, str((origin or {}).get("name", path.stem)), path)
    _check_code(about, str(path), trust_code)
    network = _built(about, state, str(path))
    return network, about, {**(origin or {"kind": "weights", "name": path.stem}), "made": _preprocessing(about, said, path)}


def _read(path: Path) -> tuple[State, dict[str, Any]]:
    try:
        return read_state(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise FedstillError(f"{path} cannot be read: {first_line(error)}") from error


def _described(said: Mapping[str, Any], name: str, path: Path) -> About:
    """The description of its network in a file of weights."""
    try:
        return About(
            name=name,
            model=Architecture(name=said["model"], norm=said.get("norm", "batch"), options=said.get("options", {})),
            classes=said["classes"],
            shape=said["shape"],
            mean=said.get("mean", 0.5),
            std=said.get("std", 0.5),
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise FedstillError(f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


def _preprocessing(about: About, said: Mapping[str, Any], path: Path) -> Preprocessing:
    """The preprocessing of its inputs, as its file describes it."""
    text, rows, limits, label = (said.get(key) for key in ("text", "rows", "range", "label"))
    assert about.model is not None
    if text is not None and is_encoder(about.model.name):
        text = {**text, "tokenizer": f"hf:{encoder_folder(about.model.name)}"}
    try:
        options = TextOptions.model_validate(text) if text is not None else None
        return Preprocessing(
            tuple(about.shape),
            options,
            Rows.from_json(rows) if rows is not None else None,
            (float(limits[0]), float(limits[1])) if limits is not None else None,
            str(label) if label is not None else None,
        )
    except (TypeError, ValueError, LookupError) as error:
        raise FedstillError(f"{path}: its preprocessing cannot be read: {first_line(error)}") from error


def _built(about: About, state: State, whose: str) -> Network:
    """The network of a run. FedMA's has its own width."""
    assert about.model is not None
    try:
        return build_network(about, state, whose)
    except FedstillError as error:
        try:
            plain = build(
                about.model.name, classes=len(about.classes), shape=about.shape, norm=about.model.norm, **about.model.options
            )
            return as_described(resized(plain, state), about).eval()
        except (FedstillError, LookupError, RuntimeError, TypeError, ValueError, AttributeError):
            raise error from None


def _check_code(about: About, whose: str, trust_code: bool) -> None:
    if about.code is not None and not trust_code and not (about.model is not None and is_encoder(about.model.name)):
        raise FedstillError(f"{whose} is {about.code}: opening it runs code; allow that with trust_code if you trust its origin")


def _of_run(folder: Path) -> dict[str, Any]:
    """What a run folder says about its model: the system, the rounds and the accuracies."""
    file = folder / "summary.json"
    found = (sound_summary(file.read_text(encoding="utf-8", errors="replace")) if file.exists() else None) or {}
    scored = [line for line in read_history(folder / "history.jsonl") if line.get("accuracy") is not None]
    return {
        "kind": "run",
        "name": folder.resolve().name,
        "algorithm": found.get("algorithm"),
        "rounds": found.get("rounds"),
        "seed": found.get("seed"),
        "accuracy": found.get("final_accuracy"),
        "domains": scored[-1].get("domains", {}) if scored else {},
        "privacy": budget_words(found.get("privacy")),
    }


def _of_config(folder: Path) -> dict[str, Any]:
    """How a run's configuration builds and feeds its network."""
    if not (folder / "config.toml").exists():
        return {}
    tree = read(folder / "config.toml")
    model, data = tree.get("model", {}), tree.get("data", {})
    found = {"norm": model.get("norm"), "options": model.get("options"), "mean": data.get("mean"), "std": data.get("std")}
    return {key: value for key, value in {**found, "text": data.get("text")}.items() if value is not None}
