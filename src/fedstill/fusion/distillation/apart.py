"""Several students learn from one table at the same time, in the engine's worker processes: the same bits as in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedstill.algorithm import Round
from fedstill.core.message import Message, State, Value, clone
from fedstill.core.streams import seeded
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import Distilled, distil
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Table
from fedstill.task import Task

__all__ = ["Learned", "learn_later", "learnt"]

Learned = tuple[Distilled, State]
JOB = "fedstill.fusion.distillation.apart:learnt"
SNAPSHOT = "snapshot-"


def learn_later(
    task: Task,
    models: Mapping[str, State],
    samples: Samples,
    table: Table,
    options: Distillation,
    round: Round,
    snapshots: int,
) -> dict[str, Callable[[], Learned]]:
    """Start every student in a worker process, those first that took longest before; returns functions that wait for them."""
    took = _TOOK.setdefault(task, {})
    assert task.jobs is not None
    shared = {"x": samples.x, "targets": table.targets}
    if table.sample_weight is not None:
        shared["sample_weight"] = table.sample_weight
    found: dict[str, Callable[[], Learned]] = {}
    for name, start in sorted(models.items(), key=lambda item: -took.get(item[0], 0.0)):
        message = Message.of(
            model=start,
            rng={"state": round.rng("distil", name).get_state()},
            name=name,
            round=round.number,
            options=json.dumps(options.model_dump(mode="json")),
            snapshots=snapshots,
        )
        (wait,) = task.jobs.submit(JOB, message, shared)
        found[name] = partial(_waited, wait, name, took)
    return found


def learnt(task: Task, message: Message, shared: Mapping[str, Tensor]) -> Message:
    """One student, in a worker process."""
    clock = time.perf_counter()
    name, rng = str(message.values["name"]), torch.Generator()
    rng.set_state(message.group("rng")["state"].clone())
    student = task.networks.load(name, message.group("model"), role="student")
    table = Table(shared["targets"], shared["targets"][:, :0], shared.get("sample_weight"))
    with seeded(task.seed, "distil", name, int(message.values["round"]), device=task.device):
        done = distil(
            student,
            Samples(shared["x"]),
            table,
            Distillation.model_validate(json.loads(str(message.values["options"]))),
            rng=rng,
            validation=task.validation,
            snapshots=int(message.values["snapshots"]),
        )
    figures = {key: value for key, value in asdict(done).items() if key != "snapshots"}
    taken = {f"{SNAPSHOT}{i}": state for i, state in enumerate(done.snapshots)}
    about: dict[str, Value] = {"figures": json.dumps(figures), "seconds": time.perf_counter() - clock}
    return Message.of(student=student.state_dict(), **taken, **about, snapshots=len(taken))


_TOOK: WeakKeyDictionary[Task, dict[str, float]] = WeakKeyDictionary()  # seconds that each student took last


def _waited(wait: Callable[[], Message], name: str, took: dict[str, float]) -> Learned:
    message = wait()
    took[name] = float(message.values["seconds"])
    taken = tuple(clone(message.group(f"{SNAPSHOT}{i}")) for i in range(int(message.values["snapshots"])))
    return Distilled(**json.loads(str(message.values["figures"])), snapshots=taken), clone(message.group("student"))
