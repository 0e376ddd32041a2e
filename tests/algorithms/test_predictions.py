"""Systems that exchange predictions: FD by hand, FedMD's order, Cronus' robustness, and what the history says of them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedstill.algorithm import Client, Reply, Round, Server
from fedstill.algorithms import create
from fedstill.algorithms.cronus import soft_labels
from fedstill.algorithms.fd import label_means, leave_one_out
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.data.samples import Samples
from fedstill.models import build
from fedstill.run.configuration import parse
from fedstill.run.loop import run
from fedstill.task import Task
from fedstill.training.fit import Batch
from tests.conftest import tiny_config, tiny_tree

POOL = {"holdout": 0.2}


def replied(client, **parts):
    message = Message.of(samples=5, **parts)
    return Reply(client, "optdigits", "mlp", 5, lambda: message)


def batch_of(logits, y):
    network = build("mlp", classes=2, shape=(3,), hidden=[2], seed=0)
    return Batch(network, torch.zeros(len(y), 3), torch.tensor(y), logits, logits, 0, torch.Generator().manual_seed(0))


# -- FD --------------------------------------------------------------------------------------------------------------------


def test_leave_one_out_by_hand():
    # three clients, two labels; client 2 has no sample of label 1
    means = torch.tensor([[[1.0, 0], [4, 0]], [[2.0, 0], [6, 0]], [[6.0, 0], [0, 0]]])
    held = torch.tensor([[True, True], [True, True], [True, False]])
    told = [leave_one_out(means, held, own)[0][:, 0].tolist() for own in (0, 1, 2, None)]
    assert told == [[4.0, 6.0], [3.5, 4.0], [1.5, 5.0], [3.0, 5.0]]
    alone = leave_one_out(means[1:], held[1:], 0)
    assert alone[1].tolist() == [True, False]  # nobody else has label 1


def test_fd_averages_outputs_by_label_and_learns_from_the_others():
    told = {"means": torch.tensor([[2.0, 0.0], [0.0, 0.0]]), "known": torch.tensor([True, False])}
    term, sums, counts = label_means(2, "logits", 0.5, told)
    logits = torch.tensor([[1.0, 3.0], [3.0, 1.0], [0.0, 5.0]])
    found = term(batch_of(logits, [0, 0, 1]))
    assert (sums / counts[:, None]).tolist() == [[2.0, 2.0], [0.0, 5.0]]
    target = torch.tensor([2.0, 0.0]).softmax(0)  # label 1 is known to nobody: its sample adds nothing
    expected = 0.5 * F.cross_entropy(logits[:2], target.expand(2, 2), reduction="sum") / 3
    assert torch.allclose(found, expected)


def test_fd_exchanges_a_vector_a_label(tmp_path):
    done = run(tiny_config(algorithm={"name": "fd"}), tmp_path)
    first, second = done.history
    assert first["bytes_down"] == 4  # two empty messages
    assert second["bytes_down"] < 2 * (4 * 100 + 10 + 10)
    assert second["bytes_up"] < 2 * (4 * 100 + 10 + 250)
    assert done.server.models == {}
    assert not (tmp_path / "model.safetensors").exists()
    assert second["accuracy_of"] == "the mean over the clients' own models"


# -- FedMD -----------------------------------------------------------------------------------------------------------------


def test_fedmd_digests_then_revisits_and_every_party_draws_the_same_subset():
    task = Task(tiny_config(data=POOL, algorithm={"name": "fedmd", "subset": 20}))
    algorithm, again = create(task), create(Task(task.config))
    assert torch.equal(algorithm.public(3).x, again.public(3).x)
    assert not torch.equal(algorithm.public(3).x, algorithm.public(4).x)
    order = []
    algorithm.train_privately = lambda *args, **kwargs: order.append("revisit")
    network = task.networks.get("mlp")
    before = F.l1_loss(network(network.normalise(algorithm.public(1).x)), torch.full((20, 10), 2.0))
    algorithm.learn(network, Client.of(task, "optdigits-0", 2), algorithm.public(1), {"logits": torch.full((20, 10), 2.0)})
    after = F.l1_loss(network(network.normalise(algorithm.public(1).x)), torch.full((20, 10), 2.0))
    assert after < before  # the consensus was learned, and private data came after it
    assert order == ["revisit"]


def test_fedmd_agrees_by_the_mean_of_logits():
    algorithm = create(Task(tiny_config(data=POOL, algorithm={"name": "fedmd", "subset": 2})))
    spoken = [torch.zeros(2, 10), torch.full((2, 10), 3.0)]
    replies = [replied(f"optdigits-{i}", predictions={"logits": s}) for i, s in enumerate(spoken)]
    server = algorithm.fuse(algorithm.start(), replies, Round(1, 2, 0))
    message = algorithm.instruct(server, "optdigits-0", Round(2, 2, 0))
    assert message.group("consensus")["logits"].unique().tolist() == [1.5]
    assert message.values["subset"] == 1
    wrong = Message.of(predictions={"logits": torch.zeros(3, 10)}, samples=1)
    assert "(2, 10)" in str(algorithm.screen(server, "optdigits-0", wrong))


def test_fedmd_takes_different_architectures_and_sends_predictions_only(tmp_path):
    tree = tiny_tree(data=POOL, algorithm={"name": "fedmd", "subset": 20, "digest_batch_size": 10})
    done = run(parse({**tree, "model": {"clients": ["mlp", "cnn-small"]}}), tmp_path)
    assert done.history[1]["bytes_down"] - 2 * 4 * 20 * 10 < 50
    assert done.history[1]["bytes_up"] - 2 * 4 * 20 * 10 < 400
    known = done.server.values["accuracies"]
    assert set(known) == {"optdigits-0", "mnist-0"}
    by_hand = sum(known[c][d] for c in known for d in known[c]) / 4
    assert done.accuracy == pytest.approx(by_hand)
    assert list((tmp_path / "clients" / "mnist-0").glob("2-*.safetensors"))  # the personal models


def test_own_domains_only_and_poisoned_clients_are_not_asked():
    config = tiny_config(
        data={**POOL, "poison": {"clients": ["mnist"], "kind": "sign-flip"}},
        algorithm={"name": "fedmd", "subset": 20, "tested": "own"},
    )
    task = Task(config)
    algorithm = create(task)
    reply = algorithm.train(Message(), Client.of(task, "optdigits-0", 1))
    assert [key for key in reply.values if key.startswith("accuracy of ")] == ["accuracy of optdigits"]
    server = algorithm.start()
    server.values["accuracies"] = {"optdigits-0": {"optdigits": 0.8}, "mnist-0": {"optdigits": 0.0}}
    assert algorithm.evaluate(server).domains == {"optdigits": 0.8}


def test_public_data_is_needed():
    with pytest.raises(FedstillError, match=r"data\.server"):
        create(Task(tiny_config(algorithm={"name": "fedmd"})))


# -- Cronus ----------------------------------------------------------------------------------------------------------------


def test_cronus_learns_soft_labels_beside_private_data():
    public, targets = Samples(torch.zeros(1, 3)), torch.tensor([[0.3, 0.7]])
    batch = batch_of(torch.zeros(2, 2), [0, 1])
    expected = 2 * F.cross_entropy(batch.network(torch.zeros(4, 3)), targets.expand(4, 2))
    assert torch.allclose(soft_labels(public, targets, 2.0, 4)(batch), expected)


def test_cronus_ignores_the_liar():
    config = tiny_config(data=POOL, algorithm={"name": "cronus", "subset": 6})
    algorithm = create(Task(config))
    honest = 5 * F.one_hot(torch.arange(6), 10).float()
    spoken = [honest + 0.1 * i for i in range(4)] + [-honest * 3]
    replies = [replied(str(i), predictions={"logits": s}) for i, s in enumerate(spoken)]
    context = Round(1, 2, 0)
    server = algorithm.fuse(algorithm.start(), replies, context)
    assert torch.allclose(server.parts["consensus"]["labels"], honest.softmax(1), atol=1e-4)
    assert context.notes["weights"]["4"] == 0


def test_cronus_runs_and_agrees_only_by_a_vote(tmp_path):
    done = run(tiny_config(data=POOL, algorithm={"name": "cronus", "subset": 20}), tmp_path)
    assert done.history[-1]["accuracy_of"]
    assert set(done.history[-1]["weights"]) == {"optdigits-0", "mnist-0"}
    with pytest.raises(FedstillError, match="votes"):
        run(tiny_config(data=POOL, algorithm={"name": "cronus", "weighting": "uniform"}), tmp_path / "b")
    with pytest.raises(FedstillError, match="did you mean 'algorithm.weighting_options.epsilon'"):
        run(tiny_config(data=POOL, algorithm={"name": "cronus", "weighting_options": {"epsilom": 1}}), tmp_path / "c")


def test_a_resumed_run_is_the_same_run(tmp_path):
    options = {"data": POOL, "algorithm": {"name": "cronus", "subset": 20}}
    whole = run(tiny_config(rounds=2, **options), tmp_path / "whole")
    run(tiny_config(rounds=1, **options), tmp_path / "part")
    resumed = run(tiny_config(rounds=2, **options), tmp_path / "part", resume=True)
    assert resumed.history[-1]["domains"] == whole.history[-1]["domains"]


def test_nothing_to_say_is_a_message_too():
    algorithm = create(Task(tiny_config(algorithm={"name": "fd"})))
    silence = algorithm.instruct(algorithm.start(), "optdigits-0", Round(1, 2, 0))
    assert Message.from_bytes(silence.to_bytes()) == Message()  # the first round tells nobody anything


def test_what_fd_tells_does_not_depend_on_the_order_in_which_a_checkpoint_is_read():
    algorithm = create(Task(tiny_config(algorithm={"name": "fd"})))
    generator = torch.Generator().manual_seed(0)
    means = {f"client-{i}": torch.randn(10, 10, generator=generator) for i in range(7)}
    held = {name: torch.ones(10, dtype=torch.bool) for name in means}
    backwards = dict(reversed(means.items()))
    told = [
        algorithm.instruct(Server({}, {"means": order, "held": held}), "client-3", Round(2, 3, 0)).group("told")["means"]
        for order in (means, backwards)
    ]
    assert torch.equal(*told)
