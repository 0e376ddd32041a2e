"""The transfer of a round: teachers predict on the samples, every student learns, and the history records the outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedstill.algorithm import Reply, Round, Scores
from fedstill.core.errors import FedstillError
from fedstill.core.message import State, clone
from fedstill.core.streams import seeded
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.apart import Learned, learn_later
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space, Table, ensemble_table
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import Ready, Voting, Weighting
from fedstill.models.network import Network
from fedstill.models.predict import accuracy
from fedstill.task import Task
from fedstill.task.predictions import Later, ahead, predict_later, right_later

__all__ = ["learn", "note_ceiling", "note_merged", "note_weights", "transfer"]


def transfer(
    task: Task,
    models: Mapping[str, State],
    teachers: Sequence[Teacher],
    samples: Samples,
    weighting: Weighting,
    options: Distillation,
    round: Round,
    *,
    space: Space = "logits",
    view: Callable[[Network], Network] = lambda network: network,
    inputs: Callable[[int, torch.Generator], Tensor] | None = None,
    hold: float = 0.0,
    snapshots: int = 0,
) -> tuple[dict[str, State], tuple[Samples, Tensor] | None]:
    """Distil the teachers into every model of ``models`` (the students' initial weights). Returns the students' weights, and the
    share ``hold`` of the samples that they did not learn from, with the ensemble's targets.

    ``view`` is the part of a network that takes ``samples``: all of it, or only its head if they are features. ``inputs``
    makes new ones for each step if ``options.fresh`` is set.

    Notes in the round: the merged models' and the ensemble's accuracy, mean teacher weights, losses, and a warning if
    validation data shows that distillation hurt.
    """
    table_of = partial(
        ensemble_table,
        [_viewed(teacher, view) for teacher in teachers],
        weighting=weighting,
        space=space,
        temperature=options.temperature,
        direction=options.direction,
        task=task,
    )
    table: Table | Callable[[Tensor], Table]
    heard = Heard([teacher.name for teacher in teachers])
    if options.fresh:
        table = lambda x: heard.of(table_of(Samples(x)))
    else:
        table = table_of(samples, progress=partial(round.progress, "teachers"))
        note_weights(task, teachers, table, samples, round)
        table = replace(table, weights=table.weights[:, :0])  # noted, and as large as all samples times all teachers
    held = None
    private = isinstance(weighting, Voting) and weighting.private
    if private and isinstance(table, Table):  # samples without an answer are left out
        assert table.sample_weight is not None
        heard_of = torch.nonzero(table.sample_weight.cpu() > 0).flatten()
        if not len(heard_of):
            round.notes.setdefault("warnings", []).append(f"round {round.number}: no sample was answered, nothing is learned")
            note_merged(task, models, round)
            return {name: clone(state) for name, state in models.items()}, None
        samples, table = samples.take(heard_of), table.take(heard_of)
    if hold and isinstance(table, Table):
        order = torch.randperm(len(samples), generator=round.rng("judge"))
        some, rest = order[: math.ceil(hold * len(samples))], order[math.ceil(hold * len(samples)) :]
        held = samples.take(some), table.targets[some.to(table.targets.device)]
        samples, table = samples.take(rest), table.take(rest)
    alone = private or not ahead(task)  # otherwise workers measure while students learn
    found: list[Asked] = []
    ask = lambda: None if alone else found.append(Asked(task, models, teachers, weighting, round))
    students = learn(task, models, samples, table, options, round, view=view, inputs=inputs, snapshots=snapshots, meanwhile=ask)
    asked = found[0] if found else None
    if heard.samples:
        round.note(weights=heard.means())
    # measured last, so that a weighting that draws at random gives the same model whether or not it is measured
    if private:
        note_merged(task, models, round)  # the ensemble is not asked about test samples
    else:
        note_ceiling(task, models, teachers, weighting, options, round, space, asked)
    return students, held


@dataclass
class Heard:
    """The teachers' mean weights over tables that come batch by batch.

    >>> heard = Heard(["a", "b"])
    >>> for weights in (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]] * 3)):
    ...     _ = heard.of(Table(targets=weights, weights=weights))
    >>> heard.means()
    {'a': 0.25, 'b': 0.75}
    """

    names: Sequence[str]
    samples: int = 0
    total: Tensor | None = None

    def of(self, table: Table) -> Table:
        """The same table, after its weights are added to the means."""
        weights = table.weights.sum(0)
        self.total = weights if self.total is None else self.total + weights
        self.samples += len(table.weights)
        return table

    def means(self) -> dict[str, float]:
        """The mean weights by the teachers' names."""
        assert self.total is not None
        return {name: float(f"{value / self.samples:.5g}") for name, value in zip(self.names, self.total.tolist(), strict=True)}


def _viewed(teacher: Teacher, view: Callable[[Network], Network]) -> Teacher:
    return replace(teacher, load=lambda: view(teacher.load()))


def learn(
    task: Task,
    models: Mapping[str, State],
    samples: Samples,
    table: Table | Callable[[Tensor], Table],
    options: Distillation,
    round: Round,
    *,
    view: Callable[[Network], Network] = lambda network: network,
    inputs: Callable[[int, torch.Generator], Tensor] | None = None,
    snapshots: int = 0,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, State]:
    """The students' part of :func:`transfer`, for a table that already exists. ``meanwhile`` starts other work for the workers:
    after students that learn there, so that its small pieces fill the time in which the last student learns."""
    if options.backbone_rate is None:
        options = options.model_copy(update={"backbone_rate": task.config.local.backbone_rate})
    students: dict[str, State] = {}
    losses: dict[str, dict[str, Any]] = {}
    whole = all(view(student) is student for student in map(partial(task.networks.get, role="student"), models))
    later: dict[str, Callable[[], Learned]] = {}
    if len(models) > 1 and whole and isinstance(table, Table) and task.jobs is not None and task.device.type == "cpu":
        later = learn_later(task, models, samples, table, options, round, snapshots)
    meanwhile()
    for name, start in models.items():
        if name in later:
            done, students[name] = later[name]()
        else:
            student = task.networks.load(name, start, role="student")
            # one of several students draws from a stream of its own, since they may learn in different processes
            drawn = seeded(task.seed, "distil", name, round.number, device=task.device) if len(models) > 1 else nullcontext()
            with drawn:
                done = distil(
                    view(student),
                    samples,
                    table,
                    options,
                    rng=round.rng("distil", name),
                    validation=task.validation if view(student) is student else None,
                    inputs=inputs,
                    snapshots=snapshots,
                    progress=partial(round.progress, f"distil {name}"),
                )
            students[name] = clone(student.state_dict())
        if not math.isfinite(done.last_loss):
            raise FedstillError(
                f"round {round.number}: distillation of {name} diverged (loss {done.last_loss}) after {done.steps} steps; "
                f"lower the rate of algorithm.distillation.optimizer"
            )
        losses[name] = {"steps": done.steps, "first": done.first_loss, "last": done.last_loss}
        if done.before is not None:
            losses[name].update(validation_before=done.before, validation_after=done.after, kept=done.kept)
        if done.hurt:
            fell = f"validation accuracy of {name} fell from {done.before:.3f} to {done.after:.3f} by distillation"
            hint = "the merged model is kept" if done.kept == "merged" else "keep_if_worse = 'merged' would keep the merged model"
            text = f"round {round.number}: {fell}; {hint}"
            round.notes.setdefault("warnings", []).append(text)
        round.snapshots[name] = [_named_like(students[name], taken) for taken in done.snapshots]
    round.note(distillation=losses)
    return students


def _named_like(student: State, taken: State) -> State:
    """A snapshot with all of the student's tensors: a snapshot of the head alone gets the rest, which did not change.

    >>> _named_like({"body": torch.ones(1), "head.w": torch.ones(1)}, {"head.w": torch.zeros(1)})
    {'body': tensor([1.]), 'head.w': tensor([0.])}
    """
    return {**student, **taken}


def note_ceiling(
    task: Task,
    models: Mapping[str, State],
    teachers: Sequence[Teacher],
    weighting: Weighting,
    options: Distillation,
    round: Round,
    space: Space,
    asked: Asked | None = None,
) -> None:
    """Note the accuracy before distillation (``merged_accuracy``) and of the ensemble, its ceiling (``ensemble_accuracy``)."""
    if not note_merged(task, models, round, asked.merged if asked is not None else None):
        return
    clock = time.perf_counter()
    tests = [test for test in task.tests.values() if test.y is not None]
    together = asked.samples if asked is not None else tested(task)
    table = ensemble_table(
        teachers,
        together,
        weighting,
        space=space,
        temperature=options.temperature,
        direction=options.direction,
        batch_size=task.config.evaluation.batch_size,
        task=task,
        logits=(wait() for wait in asked.logits) if asked is not None and asked.logits is not None else None,
    )
    labels = torch.cat([test.y for test in tests if test.y is not None])
    right = table.targets.argmax(1).cpu() == labels
    if table.sample_weight is not None:
        round.note(confident=table.confident(labels))
    by_domain = [float(part.double().mean()) for part in right.split([len(test) for test in tests])]
    round.note(
        ensemble_accuracy=fmean(by_domain),
        evaluate_seconds=round.notes.get("evaluate_seconds", 0.0) + time.perf_counter() - clock,
    )


def tested(task: Task) -> Samples:
    """The labelled test samples of all domains together; the same tensor in every round, so that workers get it only once."""
    found = [test.x for test in task.tests.values() if test.y is not None]
    if task.jobs is None:
        return Samples(torch.cat(found))
    if task not in _TESTED:
        _TESTED[task] = torch.cat(found)
    return Samples(_TESTED[task])


_TESTED: WeakKeyDictionary[Task, Tensor] = WeakKeyDictionary()


def measured(task: Task, round: Round) -> bool:
    """Whether the averages and the ensemble are measured in this round."""
    evaluation = task.config.evaluation
    return evaluation.ensemble and bool(task.tests) and evaluation.due(round.number, round.total)


class Asked:
    """What workers compute on the test sets while the students learn: the averages' accuracies and the teachers' logits."""

    def __init__(self, task: Task, models: Mapping[str, State], teachers: Sequence[Teacher], weighting: Weighting, round: Round):
        self.merged: Merged | None = None
        self.logits: list[Later] | None = None
        self.samples = Samples(torch.empty(0))
        if not measured(task, round):
            return
        size = task.config.evaluation.batch_size
        self.merged = merged_later(task, models)
        self.samples = tested(task)
        sent = sum(t.numel() * t.element_size() for state in models.values() for t in state.values()) * len(teachers)
        if isinstance(weighting, Ready) and sent <= MOST:
            self.logits = [predict_later(task, teacher.load(), self.samples, size) for teacher in teachers]


MOST = 1 << 30  # bytes of teachers' weights that may wait for a worker
Merged = dict[str, list[Callable[[], float]]]  # by domain, one for each model


def merged_later(task: Task, models: Mapping[str, State]) -> Merged:
    """The accuracy of every model on every domain."""
    size = task.config.evaluation.batch_size
    found: Merged = {domain: [] for domain in task.tests}
    for name, state in models.items():
        network = task.networks.load(name, state, role="student")
        for domain, test in task.tests.items():
            found[domain].append(right_later(task, network, test, size))
    return found


def note_merged(task: Task, models: Mapping[str, State], round: Round, later: Merged | None = None) -> bool:
    """Note the accuracy before distillation, in rounds that measure it; returns whether this round does."""
    if not measured(task, round):
        round.note(merged_accuracy=None)  # not measured, so the accuracy after distillation must not stand in for it
        return False
    clock = time.perf_counter()
    later = merged_later(task, models) if later is None else later
    merged = Scores({domain: fmean(wait() for wait in found) for domain, found in later.items()})
    spent = time.perf_counter() - clock
    round.note(merged_accuracy=merged.mean, evaluate_seconds=round.notes.get("evaluate_seconds", 0.0) + spent)
    return True


def note_personal(task: Task, replies: Sequence[Reply], round: Round) -> None:
    """Note the accuracy of each client's own model on its own domain's test set, if the server has one."""
    evaluation = task.config.evaluation
    replies = [reply for reply in replies if reply.domain in task.domains]
    if not replies or not evaluation.due(round.number, round.total):
        return
    clock = time.perf_counter()
    size, load = evaluation.batch_size, partial(task.networks.load, role="teacher")
    round.note(
        personal_accuracy={
            reply.client: accuracy(load(reply.prototype, reply.model), task.domains[reply.domain].test, size) for reply in replies
        }
    )
    round.note(evaluate_seconds=round.notes.get("evaluate_seconds", 0.0) + time.perf_counter() - clock)


def note_weights(task: Task, teachers: Sequence[Teacher], table: Table, samples: Samples, round: Round) -> None:
    """Note each teacher's mean weight; if the samples are the server's pool, also by domain of origin."""
    names = [teacher.name for teacher in teachers]

    def means(weights: Tensor) -> dict[str, float]:
        return {name: float(f"{value:.5g}") for name, value in zip(names, weights.mean(0).tolist(), strict=True)}

    round.note(weights=means(table.weights))
    pool = task.pool
    if pool is not None and samples is pool.samples:
        origin, whole = pool.origin.to(table.weights.device), len(pool.domains) == 1
        round.note(
            weights_by_domain={
                domain: round.notes["weights"] if whole else means(table.weights[origin == i])
                for i, domain in enumerate(pool.domains)
                if bool((origin == i).any())
            }
        )
