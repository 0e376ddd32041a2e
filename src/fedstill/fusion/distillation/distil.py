"""Distillation: a student learns a table of targets.

A student with BatchNorm in train mode would replace its statistics by the pool's, which ruins it if the pool is not from the
clients' domains. So by default its statistics are frozen while it learns (``student_norm``, measured in docs/distillation.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError
from fedstill.core.message import State, clone
from fedstill.data.augment import augment
from fedstill.data.samples import Samples, resident
from fedstill.fusion.distillation.divergence import divergence, sharpened
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Table
from fedstill.fusion.merges import weighted_sum
from fedstill.models.network import Network
from fedstill.models.predict import accuracy
from fedstill.models.statistics import freeze_statistics, recalibrate
from fedstill.training.batches import batches, smallest_batch
from fedstill.training.optimizers import by_depth, make_optimizer

__all__ = ["Distilled", "distil", "mixed", "pull_back"]


@dataclass(frozen=True)
class Distilled:
    """The outcome of distillation: steps, mean loss of the first and the last tenth, validation accuracy before and after."""

    steps: int
    first_loss: float
    last_loss: float
    before: float | None = None
    after: float | None = None
    kept: str = "student"
    snapshots: tuple[State, ...] = ()

    @property
    def hurt(self) -> bool:
        """Whether validation accuracy fell."""
        return self.before is not None and self.after is not None and self.after < self.before


def distil(
    student: Network,
    samples: Samples,
    table: Table | Callable[[Tensor], Table],
    options: Distillation,
    *,
    rng: torch.Generator,
    optimizer: torch.optim.Optimizer | None = None,
    validation: Samples | None = None,
    inputs: Callable[[int, torch.Generator], Tensor] | None = None,
    snapshots: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Distilled:
    """Train ``student`` in place towards the table's targets on ``samples``.

    ``table`` is the fixed table of the round, or for fresh inputs a function that makes one for each batch; the inputs are
    samples with new augmentation, or those that ``inputs`` makes. With ``validation``, the best snapshot is the result, and
    training stops after ``patience`` steps without a better one. ``snapshots`` is the number of evenly spaced states to keep.
    An ``optimizer`` passed by the caller (over the student's parameters) keeps its state from one round to the next.
    """
    device = next(student.parameters()).device
    parameters = [p for p in student.parameters() if p.requires_grad]
    if optimizer is None:
        groups = by_depth(student, parameters, options.backbone_rate or 1.0, options.optimizer.lr)
        optimizer = make_optimizer(options.optimizer, groups)
    size = min(options.batch_size, len(samples))
    if len(samples) == 1 and options.student_norm != "frozen" and smallest_batch(student) > 1:
        raise FedstillError(
            f"one sample has no batch statistics: a student with BatchNorm and student_norm = '{options.student_norm}' "
            "needs at least two; or set student_norm = 'frozen'"
        )
    lone = len(samples) % size == 1 and size > 1 and options.student_norm != "frozen"  # one sample has no batch statistics
    epoch = len(samples) // size if lone else -(-len(samples) // size)
    steps = options.epochs * epoch if options.epochs else options.steps
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if options.schedule == "cosine" else None
    best, best_step, best_state = -1.0, 0, None
    before = accuracy(student, validation) if validation is not None else None
    merged = clone(student.state_dict()) if options.keep_if_worse == "merged" and validation is not None else None
    averaged, count = None, 0
    averaging = options.averaging or None
    every = epoch if averaging is None or averaging.every == "epoch" else averaging.every
    fixed = table if isinstance(table, Table) else None
    targets = _targets(fixed, options).to(device) if fixed is not None else None
    counts = fixed.sample_weight.to(device) if fixed is not None and fixed.sample_weight is not None else None
    x_all = resident(samples.x, device)
    losses: list[Tensor] = []
    due = {round(steps * (i + 1) / (snapshots + 1)) for i in range(snapshots)}
    taken: list[State] = []
    anchor = [p.detach().clone() for p in parameters] if options.proximal else []
    _learning(student, options)
    done = 0
    for index in batches(len(samples), size, rng, steps=steps, drop_last=lone):
        index = index.to(device) if device.type != "cpu" else index
        if targets is not None:
            x, wanted = student.normalise(x_all[index]), targets[index]
            weight = counts[index] if counts is not None else None
        else:
            raw = inputs(len(index), rng).to(device) if inputs is not None else x_all[index]
            x = student.normalise(augment(raw, options.augment.flip, options.augment.crop, rng))
            assert not isinstance(table, Table), "a fixed table has targets"
            live = table(x)
            wanted, weight = _targets(live, options), live.sample_weight
        if options.mixup is not None:
            x, wanted = mixed(x, wanted, options.mixup, rng)
        optimizer.zero_grad(set_to_none=True)
        loss = divergence(
            student(x),
            wanted,
            direction=options.direction,
            temperature=options.temperature,
            square=options.square,
            reduction=options.reduction,
            weight=weight,
        )
        loss.backward()
        if options.proximal:
            pull_back(parameters, anchor, options.proximal)
        if options.clip:
            nn.utils.clip_grad_norm_(parameters, options.clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.detach())
        done += 1
        if averaging and done >= min(averaging.start, steps // 3) and done % every == 0:
            now: State = clone(student.state_dict())
            averaged = now if averaged is None else weighted_sum([averaged, now], [count / (count + 1), 1 / (count + 1)])
            count += 1
        if done in due:
            taken.append(clone(student.state_dict()))
        if done % 20 == 0:
            progress(done, steps)
        if validation is not None and options.patience and (done % options.check_every == 0 or done == steps):
            found = accuracy(student, validation)
            _learning(student, options)
            if found > best:
                best, best_step, best_state = found, done, clone(student.state_dict())
            elif done - best_step >= options.patience:
                break
    if averaged is not None:
        student.load_state_dict(averaged)
        if options.student_norm != "frozen":  # averaged weights need their own statistics
            recalibrate(student, samples)
    elif best_state is not None:
        student.load_state_dict(best_state)
    if options.student_norm == "recalibrate":
        recalibrate(student, samples)
    after = accuracy(student, validation) if validation is not None else None
    kept = "student"
    if merged is not None and before is not None and after is not None and after < before:
        student.load_state_dict(merged)
        kept = "merged"
    curve = torch.stack(losses) if losses else torch.full((1,), float("nan"))
    tenth = max(1, len(curve) // 10)
    return Distilled(done, float(curve[:tenth].mean()), float(curve[-tenth:].mean()), before, after, kept, tuple(taken))


def pull_back(parameters: Sequence[nn.Parameter], anchor: Sequence[Tensor], mu: float) -> None:
    """Add the gradient of ``mu/2 * ||w - anchor||^2`` to that of the loss.

    >>> w = nn.Parameter(torch.tensor([3.0]))
    >>> w.grad = torch.tensor([0.5])
    >>> pull_back([w], [torch.tensor([1.0])], 0.1)
    >>> round(w.grad.item(), 3)
    0.7
    """
    with torch.no_grad():
        for p, start in zip(parameters, anchor, strict=True):
            if p.grad is not None:
                p.grad.add_(p - start, alpha=mu)


def mixed(x: Tensor, targets: Tensor, alpha: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mixup: each sample and its target mixed with a partner's, ``lam x + (1 - lam) x'`` with ``lam ~ Beta(alpha, alpha)``.

    >>> x, targets = mixed(torch.tensor([[0.0], [1.0]]), torch.eye(2), 2.0, torch.Generator().manual_seed(4))
    >>> torch.allclose(x[:, 0], targets[:, 1])
    True
    """
    share = float(np.random.default_rng(int(torch.randint(2**62, (1,), generator=rng))).beta(alpha, alpha))
    partner = torch.randperm(len(x), generator=rng).to(x.device)
    return torch.lerp(x[partner], x, share), torch.lerp(targets[partner], targets, share)


def _targets(table: Table, options: Distillation) -> Tensor:
    return sharpened(table.targets, options.sharpen) if options.sharpen else table.targets


def _learning(student: Network, options: Distillation) -> None:
    student.train()
    if options.student_norm == "frozen":
        freeze_statistics(student)
