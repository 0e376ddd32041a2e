"""What the authors' own functions gave for small inputs, and ours give too. The tables are their outputs, not their code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedstill.algorithm import Reply, Round
from fedstill.algorithms.fedftg import FedFTGOptions, drawn_labels
from fedstill.algorithms.fedgen import fedgen_loss
from fedstill.algorithms.shot import pseudo_labels
from fedstill.core.message import Message
from fedstill.data.partition import Partition, partition
from fedstill.fusion.worst import DropWorst, drop_teachers, drop_worst, kept
from fedstill.task import Task
from tests.algorithms.adaptation import algorithm_of, exchange, tiny

# SHOT, object code of June 2022: features, logits, and the labels for thresholds 1 and 2
FEATURES = [
    [1.8, 0.5], [-1.7, -1.7], [-0.1, -0.6], [0.1, -0.1], [2.6, -0.4],
    [0.4, -0.1], [1.5, 0.5], [0.2, 1.7], [0.7, 0.0], [-1.2, -1.5],
]  # fmt: skip
LOGITS = [
    [1.9, 0.3, 0.9], [-2.4, 0.8, -0.7], [0.3, -1.6, -1.8], [-0.2, -0.5, -1.7], [-1.0, 0.7, 1.2],
    [1.5, 0.5, 0.6], [-0.9, -0.7, -0.5], [-2.0, -0.3, -0.6], [-2.0, -0.1, 1.9], [0.2, 0.9, 0.5],
]  # fmt: skip


@pytest.mark.parametrize("threshold", [1, 2])
def test_shot_counts_the_classes_anew_before_the_second_pass(threshold: int):
    found = pseudo_labels(torch.tensor(FEATURES), torch.tensor(LOGITS).softmax(1), threshold)
    assert found.tolist() == [2, 1, 1, 1, 2, 2, 2, 2, 2, 1]  # counted once: [2, 1, 1, 0, 2, 0, 2, 2, 0, 1]


def test_shot_has_no_class_left_where_the_threshold_is_too_high():
    q = torch.tensor(LOGITS).softmax(1)
    assert torch.equal(pseudo_labels(torch.tensor(FEATURES), q, 99), q.argmax(1))


# FedFTG: clients' counts, batch, and how many labels of each class its function gave
SHARED_OUT = [([1, 0, 3], 6, [1, 0, 5]), ([7, 1, 1, 30, 2], 50, [8, 1, 1, 37, 3]), ([0, 9, 0, 1], 5, [0, 4, 0, 1])]


@pytest.mark.parametrize(("counts", "n", "given"), SHARED_OUT)
def test_fedftgs_labels_are_shared_out(counts: list[int], n: int, given: list[int]):
    labels = drawn_labels(torch.tensor(counts), n, "stratified", torch.Generator().manual_seed(0))
    assert torch.bincount(labels, minlength=len(counts)).tolist() == given


def test_fedftgs_preset():
    coded = FedFTGOptions(preset="authors-code")
    assert (coded.gap, coded.label_sampling, coded.batch_size, coded.reduction) == ("l1", "stratified", 50, "mean")
    assert (coded.class_weights, coded.line) == ("authors-code", False)
    paper = FedFTGOptions()
    assert (paper.gap, paper.label_sampling, paper.batch_size, paper.class_weights) == ("kl", "counts", 64, "sample")


def test_the_codes_class_weights_are_a_product_of_means():
    head = nn.Linear(1, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [1.0]]))
        head.bias.zero_()
    made, labels = torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1])
    ce = nn.functional.cross_entropy(head(made), labels, reduction="none")
    shares = torch.tensor([[1.0, 0.2]])
    sample, coded = (fedgen_loss([head], shares, made, labels, form) for form in ("sample", "authors-code"))
    assert sample.item() == pytest.approx(((1.0 * ce[0] + 0.2 * ce[1]) / 2).item())
    assert coded.item() == pytest.approx(0.6 * ce.mean().item())


@pytest.mark.parametrize("name", ["fedgen", "fedftg"])
def test_both_run_with_the_codes_class_weights(name: str):
    extra = {"adversarial": 0.5, "steps": 2} if name == "fedgen" else {"iterations": 1, "student_steps": 1}
    config = tiny(name, data={"target": None}, class_weights="authors-code", **extra)
    algorithm = algorithm_of(config)
    assert algorithm.options.class_weights == "authors-code"
    server, round = algorithm.start(), Round(1, 2, 0)
    assert algorithm.fuse(server, exchange(algorithm, server, round, {}), round).models


# FedDF: distance in total variation of a client's classes from the mean, 20 clients (its own partition: .383 and .681)
@pytest.mark.parametrize(("alpha", "theirs"), [(1.0, 0.383), (0.1, 0.681)])
def test_feddfs_partition_is_as_hard_as_theirs(alpha: float, theirs: float):
    labels = np.repeat(np.arange(10), 400)
    spec = Partition(kind="dirichlet", alpha=alpha, variant="equal")
    distances = []
    for seed in range(8):
        for share in partition(labels, 20, spec, np.random.default_rng(seed)):
            shares = np.bincount(labels[share], minlength=10) / len(share)
            distances.append(np.abs(shares - 0.1).sum() / 2)
    assert np.mean(distances) == pytest.approx(theirs, abs=0.03)


def test_feddfs_deviation_rule_is_for_teachers_alone():
    task = Task(tiny("feddf", data={"target": None, "holdout": 0.2, "validation": 0.2}))
    scores = {"a": 0.61, "b": 0.6, "c": 0.59, "d": 0.6, "e": 0.3}
    assert kept(torch.tensor(list(scores.values())), 10, DropWorst()).tolist() == [True, True, True, True, False]
    round = Round(1, 2, 0, validated=dict(scores))
    replies = [Reply(name, "", "cnn-small", 1, Message) for name in scores]
    average = drop_worst(task, replies, DropWorst(), round)
    assert [reply.client for reply in average] == list("abcde")
    assert [reply.client for reply in drop_teachers(task, average, DropWorst(), round)] == list("abcd")
    assert (list(round.notes["worst_teachers"]), "worst" in round.notes) == (["e"], False)
    # chance leaves somebody out: then nobody else
    round = Round(1, 2, 0, validated={**scores, "b": 0.05})
    average = drop_worst(task, replies, DropWorst(), round)
    assert [reply.client for reply in drop_teachers(task, average, DropWorst(), round)] == list("acde")
