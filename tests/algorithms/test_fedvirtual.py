"""FedVirtual: features drawn from the sites' statistics, labelled by their own site, distilled into the average."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.algorithm import Reply, Round
from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.data.samples import Samples
from fedstill.fusion.feature_map import note_features
from fedstill.fusion.sources.statistics import Virtual, draw_virtual
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.virtual import own_table
from fedstill.local.reports.statistics import Statistics, described, site_statistics
from fedstill.models import build
from fedstill.run.loop import run
from fedstill.task import Task


def settings(**algorithm: Any) -> dict[str, Any]:
    return {
        "data": {"limit": 120, "test_limit": 40, "image_size": 16},
        "model": {"name": "resnet8", "train": "head"},
        "local": {"epochs": 3},
        "algorithm": {"name": "fedvirtual", "source": {"size": 600, "options": {"min_samples": 4}}, **algorithm},
    }


def reply(name: str, centre: float, count: int) -> Reply:
    z = torch.randn(count, 3, generator=torch.Generator().manual_seed(count)) * 0.1 + centre
    part = described(z, torch.zeros(count, dtype=torch.long), Statistics()).state()
    return Reply(name, name, "mlp", count, lambda: Message.of(statistics=part))


def test_sites_give_as_many_features_as_they_have_samples() -> None:
    virtual = draw_virtual([reply("a", 0.0, 90), reply("b", 7.0, 30)], 2000, (3,), torch.Generator().manual_seed(0))
    assert virtual.origin.double().mean().item() == pytest.approx(0.25, abs=0.03)
    assert bool((virtual.samples.x[virtual.origin == 0].abs() < 2).all())
    assert bool(((virtual.samples.x[virtual.origin == 1] - 7).abs() < 2).all())


def test_many_features_lie_in_a_file_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [reply("a", 0.0, 90), reply("b", 7.0, 30)]
    one = draw_virtual(replies, 2000, (3,), torch.Generator().manual_seed(0))
    monkeypatch.setattr("fedstill.fusion.sources.statistics.PIECE", 100)
    other = draw_virtual(replies, 2000, (3,), torch.Generator().manual_seed(0))
    assert torch.equal(one.samples.x, other.samples.x)
    assert torch.equal(one.labels, other.labels)
    network = build("mlp", classes=2, shape=(1, 1, 3), hidden=[2], seed=0)
    teachers = [Teacher(name, lambda: network) for name in "ab"]
    tables = []
    for virtual, piece in ((one, 10_000), (other, 64)):
        monkeypatch.setattr("fedstill.fusion.virtual.PIECE", piece)
        shaped = Virtual(Samples(virtual.samples.x.view(-1, 1, 1, 3)), virtual.origin, virtual.labels)
        tables.append(own_table(lambda network: network, teachers, shaped, 2).targets)
    assert torch.equal(*tables)


def test_each_feature_is_labelled_by_the_site_it_comes_from() -> None:
    """One teacher says class 0 of everything, the other class 1."""
    networks = []
    for bias in ([9.0, 0.0], [0.0, 9.0]):
        network = build("mlp", classes=2, shape=(1, 1, 3), hidden=[2], seed=0)
        for tensor in network.state_dict().values():
            tensor.zero_()
        network.head.bias.data = torch.tensor(bias)
        networks.append(network)
    teachers = [Teacher(str(k), lambda network=network: network) for k, network in enumerate(networks)]
    virtual = Virtual(Samples(torch.zeros(3, 1, 1, 3)), torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]))
    own = own_table(lambda network: network, teachers, virtual, 2)
    assert own.targets.argmax(1).tolist() == [0, 0, 1]
    assert own.weights.tolist() == [[1, 0], [1, 0], [0, 1]]
    assert own_table(lambda network: network, teachers, virtual, 2, by_label=True).targets.tolist() == [[0, 1], [0, 1], [1, 0]]


@pytest.mark.parametrize("targets", ["own", "label", "ensemble"])
def test_no_unlabelled_data_is_needed(tiny: Any, tmp_path: Path, targets: str) -> None:
    result = run(tiny(**settings(targets=targets)), tmp_path)
    line = result.history[-1]
    assert result.task.pool is None
    assert line["dropped"] == []
    assert line["statistics"]["bytes"] > 0
    assert line["line"]["judge"] == "clients"
    assert line["distillation"]["resnet8"]["steps"] > 0


def test_sites_say_how_well_they_are_covered_and_need_not(tiny: Any, tmp_path: Path) -> None:
    told, silent = settings(), settings()
    silent["algorithm"]["source"]["options"]["coverage"] = False
    one, other = run(tiny(**told), tmp_path / "told"), run(tiny(**silent), tmp_path / "silent")
    for line in one.history:
        assert list(line["statistics"]["coverage"]) == line["clients"]
        assert all(0.2 < share <= 1 for share in line["statistics"]["coverage"].values())
    assert all("coverage" not in line["statistics"] for line in other.history)
    states = [result.server.models["resnet8"] for result in (one, other)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0]), "what is said changes nothing"


def test_real_and_virtual_features_are_left_to_look_at(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run(tiny(**settings()), tmp_path / "one")
    found = json.loads((tmp_path / "one" / "features.json").read_text())
    assert found["round"] == 2
    assert 0 < found["explained"] <= 1
    assert found["domains"].keys() == {"optdigits", "mnist"}
    for points in found["domains"].values():
        assert len(points["real"]) == len(points["virtual"]) == 40
        apart = torch.tensor(points["real"]).mean(0) - torch.tensor(points["virtual"]).mean(0)
        assert bool((apart.abs() < torch.tensor(points["real"]).std(0)).all()), "drawn from the same domain"
    monkeypatch.setattr("fedstill.algorithms.fedvirtual.note_features", lambda *given: None)
    other = run(tiny(**settings()), tmp_path / "other")
    assert not (tmp_path / "other" / "features.json").exists()
    states = [result.server.models["resnet8"] for result in (one, other)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0]), "a picture changes nothing"


def test_without_test_data_there_is_no_picture(tiny: Any) -> None:
    task = Task(tiny(**settings()))
    task.__dict__["tests"] = {}
    round = Round(2, 2, 0)
    note_features(task, create(task).start().models, [], round)
    assert round.feature_map is None


def test_workers_draw_the_same(tiny: Any, tmp_path: Path) -> None:
    one, two = (run(tiny(**settings(), engine={"workers": w}), tmp_path / str(w)) for w in (0, 2))
    states = [result.server.models["resnet8"] for result in (one, two)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_the_history_says_what_statistics_reveal_and_whether_they_were_clipped(tiny: Any, tmp_path: Path) -> None:
    config = settings()
    config["algorithm"]["source"]["options"]["clip"] = 1.5
    line = run(tiny(**config, rounds=1), tmp_path).history[-1]
    assert line["dropped"] == []
    assert line["statistics"]["reveals"] == "counts, means and covariances of classes, of features clipped to norm 1.5"


def test_an_unfrozen_backbone_is_described_as_it_was_received(tiny: Any, tmp_path: Path) -> None:
    config = settings()
    config["model"] = {"name": "mlp", "options": {"hidden": [16]}}
    line = run(tiny(**config), tmp_path).history[-1]
    assert line["dropped"] == []
    assert line["distillation"]["mlp"]["steps"] > 0


@pytest.mark.parametrize("name", ["fedvirtual", "feddf"])
def test_features_have_the_shape_of_a_trunk_whose_outputs_are_not_kept(tiny: Any, tmp_path: Path, name: str) -> None:
    """The trunk's outputs are images here, not vectors."""
    config = settings(name=name)
    config["algorithm"]["source"]["kind"] = "statistics"
    config["algorithm"]["distillation"] = {"steps": 3}
    config["model"] = {"name": "resnet8", "train": "last:1", "cache": False}
    line = run(tiny(**config, rounds=1), tmp_path).history[-1]
    assert line["dropped"] == []
    assert line["distillation"]["resnet8"]["steps"] > 0


def test_virtual_features_mix_with_a_pool_on_a_frozen_trunk(tiny: Any, tmp_path: Path) -> None:
    config = settings()
    source = {"kind": "mixture", "size": 200, "shares": {"statistics": 0.5, "data": 0.5}, "options": {"min_samples": 4}}
    config["algorithm"] = {"name": "fedd3a", "source": source, "distillation": {"epochs": 1}}
    config["data"]["server"] = "embedded:blended"
    line = run(tiny(**config), tmp_path / "frozen").history[-1]
    assert line["dropped"] == []
    assert list(line["statistics"]["coverage"]) == line["clients"]
    config["model"] = {"name": "mlp", "options": {"hidden": [16]}}
    with pytest.raises(FedstillError, match="needs a frozen trunk"):
        run(tiny(**config), tmp_path / "whole")


def test_a_reply_with_absurd_statistics_is_dropped(tiny: Any) -> None:
    algorithm = create(Task(tiny(**settings())))
    server = algorithm.start()
    message = Message.of(model=server.models["resnet8"], samples=10)
    assert "no counts" in (algorithm.screen(server, "mnist-0", message) or "")


def test_statistics_of_another_trunk_are_dropped(tiny: Any) -> None:
    here, there = (Task(tiny(**settings(), seed=seed)) for seed in (0, 1))
    algorithm = create(here)
    for task, reason in ((here, None), (there, "its statistics are of another trunk")):
        part = site_statistics(task.networks.get("resnet8"), here.data_of("mnist-0"), Statistics(min_samples=2))
        message = Message.of(model=algorithm.start().models["resnet8"], statistics=part, samples=10)
        assert algorithm.screen(algorithm.start(), "mnist-0", message) == reason


def test_what_does_not_go_together_is_refused(tiny: Any) -> None:
    with pytest.raises(FedstillError, match="per_class"):
        create(Task(tiny(**settings(targets="label", source={"options": {"per_class": False}}))))
    with pytest.raises(FedstillError, match="makes images"):
        create(Task(tiny(**settings(source={"kind": "noise"}))))
    with pytest.raises(FedstillError, match="alone"):
        tree = settings(source={"kind": "data"})
        create(Task(tiny(**{**tree, "data": {**tree["data"], "server": "embedded:blended"}})))
