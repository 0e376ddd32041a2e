"""The server's other parts on small tasks: sources, pools, drop-worst, merging, BatchNorm policies, the notes of a round."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from fedstill.algorithm import Client, Reply, Round, Server
from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, clone
from fedstill.fusion.merges import merge_models, uniform
from fedstill.fusion.sources import Source, draw, fresh_inputs
from fedstill.fusion.worst import DropWorst, check_worst, drop_worst, kept
from fedstill.models import build_generator
from fedstill.models.statistics import buffer_names, recalibrate
from fedstill.run.history import read_history
from fedstill.run.loop import run
from fedstill.task import Task


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def reply_of(task, client, state):
    info = task.clients[client]
    return Reply(client, info.domain, info.prototype, info.samples, lambda: Message.of(model=state, samples=info.samples))


# -- sources and pools ----------------------------------------------------------------------------------------------------


def test_noise_is_uniform_over_all_pixel_values(tiny):
    task = Task(tiny(data={"holdout": 0.2}))
    drawn = draw(Source(kind="noise", size=400), task, stream())
    assert drawn.x.shape == (400, 1, 8, 8)
    assert drawn.x.dtype == torch.uint8
    assert drawn.y is None
    values = drawn.x.double()
    assert (int(drawn.x.min()), int(drawn.x.max())) == (0, 255)
    assert float(values.mean()) == pytest.approx(127.5, abs=2)
    assert float(values.std()) == pytest.approx(73.9, abs=2)  # sqrt((256^2 - 1) / 12)
    assert torch.equal(drawn.x, draw(Source(kind="noise", size=400), task, stream()).x)
    assert not torch.equal(drawn.x, draw(Source(kind="noise", size=400), task, stream(1)).x)


def saved_generator(task, path):
    made = build_generator("conditional", classes=10, shape=task.shape, noise_dim=100, seed=3)
    about = {"kind": "conditional", "noise_dim": "100"}
    safetensors.torch.save_file({k: v.contiguous() for k, v in made.state_dict().items()}, str(path), about)
    return made


def a_module():
    """What ``source.generator = "module:callable"`` may name."""
    return build_generator("conditional", classes=10, shape=(1, 8, 8), seed=3)


def test_a_generator_from_a_file_or_a_module_makes_the_pool(tiny, tmp_path):
    task = Task(tiny(data={"holdout": 0.2}))
    made = saved_generator(task, tmp_path / "g.safetensors").eval()
    from_file = draw(Source(kind="generator", size=12, generator=str(tmp_path / "g.safetensors")), task, stream())
    with torch.no_grad():
        wanted = made.sample(12, stream())[0]
    assert torch.allclose(from_file.x, wanted)
    from_module = draw(Source(kind="generator", size=12, generator=f"{__name__}:a_module"), task, stream())
    assert torch.allclose(from_module.x, wanted)
    for wrong in ("nothing.safetensors", "no.such.module:thing", None):
        with pytest.raises(FedstillError, match=r"source\.generator"):
            draw(Source(kind="generator", generator=wrong), task, stream())


def test_a_mixture_has_its_shares(tiny):
    task = Task(tiny(data={"holdout": 0.5}))
    assert task.pool is not None
    mixed = draw(Source(kind="mixture", size=40, shares={"data": 1.0, "noise": 3.0}), task, stream())
    assert len(mixed) == 40
    assert mixed.x.dtype == torch.float32  # normalised, since the parts come in different forms
    pool = task.networks.get("mlp").normalise(task.pool.samples.x).flatten(1)
    real = (mixed.x.flatten(1)[:, None] == pool).all(2).any(1)
    assert int(real.sum()) == 10
    with pytest.raises(FedstillError, match="positive share"):
        draw(Source(kind="mixture", shares={"data": 0.0}), task, stream())


def test_the_pool_by_class_subset_fraction_and_limit(tiny):
    def size(**data):
        return len(Task(tiny(data={"server": "embedded:blended", **data})).pool)

    whole = size()
    assert whole == 120
    assert size(pool_fraction=0.25) == 30
    assert size(pool_limit=7) == 7
    task = Task(tiny(data={"server": "embedded:blended", "pool_classes": 3}))
    labels = task.domains["blended"].train.y
    assert len(task.pool) == int((labels < 3).sum())
    assert 0 < len(task.pool) < whole


def test_what_is_held_out_is_nobodys(tiny):
    task = Task(tiny(data={"holdout": 0.25, "validation": 0.1}, clients={"per_domain": 2}))
    held = sum(info.samples for info in task.clients.values())
    assert len(task.pool) == 60
    assert len(task.validation) == 24
    assert held + 60 + 24 == 240


def test_fresh_distillation_makes_new_samples_in_each_step(tiny, tmp_path):
    task = Task(tiny(data={"holdout": 0.2}))
    make = fresh_inputs(Source(kind="noise"), task)
    rng = stream()
    first, second = make(6, rng), make(6, rng)
    assert first.shape == (6, 1, 8, 8)
    assert not torch.equal(first, second)
    assert fresh_inputs(Source(), task) is None
    made = fresh_inputs(Source(kind="generator", generator=f"{__name__}:a_module"), task)
    assert made(3, rng).shape == (3, 1, 8, 8)
    algorithm = {"name": "feddf", "source": {"kind": "noise", "size": 32}, "distillation": {"steps": 4, "batch_size": 8}}
    models = []
    for fresh in (True, False):
        algorithm["distillation"]["fresh"] = fresh
        config = tiny(rounds=1, algorithm=algorithm, evaluation={"ensemble": False})
        models.append(run(config, tmp_path / str(fresh)).server.models["mlp"])
    assert not torch.equal(models[0]["head.weight"], models[1]["head.weight"])


# -- drop-worst -----------------------------------------------------------------------------------------------------------


def test_drop_worst_by_chance_then_by_deviation():
    rule = DropWorst()
    # first rule: under 1.2 times chance
    assert kept(torch.tensor([0.5, 0.12, 0.11]), 10, rule).tolist() == [True, True, False]
    # second rule, where the first finds nobody: others 0.5, 0.5, 0.5, 0.5, 0.2 have mean 0.44 and deviation 0.12,
    # so the bar is 0.44 - 1.5 * 0.12 = 0.26; the best, 0.9, is set aside
    scores = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.2, 0.9])
    assert kept(scores, 10, rule).tolist() == [True, True, True, True, False, True]
    assert kept(scores, 10, DropWorst(deviations=0)).all()
    # the second rule is not asked where the first one found somebody
    assert kept(torch.tensor([0.5, 0.5, 0.5, 0.5, 0.2, 0.9, 0.05]), 10, rule).tolist() == [True] * 6 + [False]


def test_drop_worst_names_who_was_left_out(tiny):
    task = Task(tiny(data={"validation": 0.3}))
    good = create(task).train(Message.of(model=task.networks.initial("mlp")), Client.of(task, "optdigits-0", 1)).group("model")
    dead = {name: torch.zeros_like(tensor) for name, tensor in good.items()}
    dead["head.bias"][int(task.validation.counts(10).argmin())] = 1.0  # says the same of everything, and is rarely right
    round = Round(1, 2, 0)
    left = drop_worst(task, [reply_of(task, "optdigits-0", good), reply_of(task, "mnist-0", dead)], DropWorst(), round)
    assert [r.client for r in left] == ["optdigits-0"]
    assert list(round.notes["worst"]) == ["mnist-0"]
    both = drop_worst(task, [reply_of(task, c, dead) for c in task.clients], DropWorst(), Round(1, 2, 0))
    assert len(both) == 2  # if all would go, all stay
    with pytest.raises(FedstillError, match=r"data\.validation"):
        check_worst(Task(tiny()), DropWorst())


# -- merging --------------------------------------------------------------------------------------------------------------


def batch_norm(tiny, **changes):
    return tiny(**{"model": {"name": "cnn-small"}, "data": {"holdout": 0.3, "image_size": 16}, **changes})


def test_architectures_are_never_averaged_together_and_one_without_clients_carries_on(tiny):
    config = tiny(
        model={"name": "mlp", "clients": ["mlp", "lenet"]},
        data={"image_size": 16, "holdout": 0.3},
        clients={"per_domain": 2},
        algorithm={"name": "feddf", "distillation": {"steps": 3}},
    )
    task = Task(config)
    server = Server({name: task.networks.initial(name) for name in task.networks.prototypes})
    states = {}
    for i, (client, info) in enumerate(task.clients.items()):
        states[client] = {k: torch.full_like(t, float(i)) for k, t in task.networks.initial(info.prototype).items()}
    clients = {name: [c for c, info in task.clients.items() if info.prototype == name] for name in task.networks.prototypes}
    merged = merge_models(task, server, [reply_of(task, c, s) for c, s in states.items()], uniform)
    for name, mine in clients.items():
        wanted = sum(list(states).index(c) for c in mine) / len(mine)
        assert all(torch.allclose(t, torch.full_like(t, wanted)) for t in merged[name].values())
    alone = merge_models(task, server, [reply_of(task, c, states[c]) for c in clients["mlp"]], uniform)
    assert all(torch.equal(alone["lenet"][k], server.models["lenet"][k]) for k in server.models["lenet"])


def test_averaged_counters_stay_whole_numbers(tiny):
    task = Task(batch_norm(tiny))
    counters = [k for k, t in task.networks.initial("cnn-small").items() if not t.is_floating_point()]
    assert counters
    states = [task.networks.initial("cnn-small") for _ in task.clients]
    for i, state in enumerate(states):
        state.update({k: torch.tensor(3 * i) for k in counters})
    server = Server({"cnn-small": task.networks.initial("cnn-small")})
    merged = merge_models(task, server, [reply_of(task, c, s) for c, s in zip(task.clients, states, strict=True)], uniform)
    assert all(merged["cnn-small"][k].dtype == torch.int64 and int(merged["cnn-small"][k]) == 2 for k in counters)


def test_recalibrated_statistics_are_those_of_the_servers_data(tiny):
    task = Task(batch_norm(tiny, model={"name": "cnn-small", "buffers": "recalibrate"}))
    server = Server({"cnn-small": task.networks.initial("cnn-small")})
    states = [task.networks.initial("cnn-small") for _ in task.clients]
    merged = merge_models(task, server, [reply_of(task, c, s) for c, s in zip(task.clients, states, strict=True)], uniform)
    wanted = clone(recalibrate(task.networks.load("cnn-small", states[0]), task.pool.samples).state_dict())
    names = buffer_names(task.networks.get("cnn-small"))
    assert all(torch.allclose(merged["cnn-small"][k].double(), wanted[k].double()) for k in names)
    assert any(not torch.allclose(wanted[k].double(), states[0][k].double()) for k in names)
    with pytest.raises(FedstillError, match=r"data\.server, holdout or validation"):
        _ = Task(tiny(model={"buffers": "recalibrate"})).statistics_data


def test_local_statistics_never_travel(tiny, tmp_path):
    for policy, alike in (("local", False), ("average", True)):
        config = batch_norm(tiny, model={"name": "cnn-small", "buffers": policy}, rounds=1)
        result = run(config, tmp_path / policy)
        names = buffer_names(result.task.networks.get("cnn-small"))
        template = result.task.networks.get("cnn-small").state_dict()
        weights = sum(t.numel() * t.element_size() for k, t in template.items() if alike or k not in names)
        extra = result.history[0]["bytes_up"] - 2 * weights
        assert 0 < extra < 500  # the values besides the tensors


# -- a round --------------------------------------------------------------------------------------------------------------


def test_a_round_says_what_distillation_did(tiny, tmp_path):
    algorithm = {"name": "feddf", "distillation": {"steps": 20, "batch_size": 16}}
    result = run(tiny(data={"holdout": 0.3, "validation": 0.1}, algorithm=algorithm, rounds=1), tmp_path / "a")
    line = result.history[0]
    assert 0 <= line["merged_accuracy"] <= 1
    assert 0 <= line["ensemble_accuracy"] <= 1
    assert line["distillation"]["mlp"]["steps"] == 20
    assert {"validation_before", "validation_after", "kept"} <= set(line["distillation"]["mlp"])
    assert line["weights"] == {"optdigits-0": 0.5, "mnist-0": 0.5}
    assert read_history(tmp_path / "a" / "history.jsonl")[0] == line


def test_the_user_is_warned_where_distillation_hurts(tiny, tmp_path):
    said = []

    class Ear:
        def __getattr__(self, name):
            return lambda *what: said.append(what[0]) if name == "warn" else None

    # a student that starts well and is taught by noise alone, fast
    algorithm = {
        "name": "feddf",
        "source": {"kind": "noise", "size": 64},
        "distillation": {
            "steps": 60,
            "batch_size": 32,
            "patience": 1,
            "check_every": 60,
            "optimizer": {"name": "sgd", "lr": 30.0},
        },
    }
    config = tiny(data={"validation": 0.3}, local={"epochs": 5}, algorithm=algorithm, rounds=1)
    line = run(config, tmp_path / "a", listeners=[Ear()]).history[0]
    assert line["distillation"]["mlp"]["validation_after"] < line["distillation"]["mlp"]["validation_before"]
    assert len(said) == 1
    assert "keep_if_worse = 'merged' would keep" in said[0]
    kept_config = tiny(
        data={"validation": 0.3},
        local={"epochs": 5},
        algorithm={**algorithm, "distillation": {**algorithm["distillation"], "keep_if_worse": "merged"}},
        rounds=1,
    )
    safe = run(kept_config, tmp_path / "b", listeners=[Ear()]).history[0]
    assert safe["accuracy"] == safe["merged_accuracy"]
    assert "the merged model is kept" in said[1]


def test_measuring_the_ensemble_does_not_change_the_model(tiny, tmp_path):
    algorithm = {"name": "feddf", "weighting": "random", "distillation": {"steps": 5, "batch_size": 16}}
    seen, unseen = [
        run(tiny(data={"holdout": 0.3}, algorithm=algorithm, evaluation={"ensemble": seen}), tmp_path / str(seen))
        for seen in (True, False)
    ]
    assert all(torch.equal(seen.server.models["mlp"][k], t) for k, t in unseen.server.models["mlp"].items())
    assert seen.history[-1]["merged_accuracy"] is not None
    assert unseen.history[-1]["merged_accuracy"] is None  # what was not measured is not claimed
