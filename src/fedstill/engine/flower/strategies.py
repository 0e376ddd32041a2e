"""FedDF and FedD3A as Flower strategies, for projects that already have a Flower app.

They replace ``flwr.serverapp.strategy.FedAvg`` in a ServerApp and need two more things: the model, and unlabelled inputs on the
server. For FedDF the clients stay the same; for FedD3A each client adds one record to its reply::

    content = RecordDict({"arrays": arrays, "metrics": metrics})                                   # before
    content = RecordDict({"arrays": arrays, "metrics": metrics, "projection": projection(received, inputs)})  # after

A broken reply (not finite, wrong names or shapes) is left out with a line in the log. Plain averaging would let it ruin the
model.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.algorithms.fedd3a import FedD3AOptions
from fedstill.core.errors import FedstillError, first_line, reason_of
from fedstill.core.message import Message, State, clone
from fedstill.core.streams import stream, subseed
from fedstill.data.samples import Samples
from fedstill.engine.flower.records import from_records
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space, ensemble_table
from fedstill.fusion.merges import weighted_sum
from fedstill.fusion.screening import fault
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import Ready
from fedstill.fusion.weightings.projection import one_hot_weights, proximity, soft_weights
from fedstill.local.reports.projection import Projection, subspace
from fedstill.local.reports.projection import fault as projection_fault
from fedstill.models.predict import apply
from fedstill.models.wrapped import Whole
from fedstill.training.schedules import learning_rate

# after fedstill.engine.flower.records, which turns Flower's telemetry off
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict  # isort: skip
from flwr.app import Message as FlowerMessage  # isort: skip
from flwr.serverapp import Grid  # isort: skip
from flwr.serverapp.strategy import FedAvg, Result  # isort: skip

__all__ = ["FedD3A", "FedDF", "projection"]

log = logging.getLogger("flwr")


def projection(model: nn.Module, inputs: Tensor | Iterable[Tensor], options: Projection = Projection()) -> ArrayRecord:
    """What a FedD3A client adds to its reply as ``"projection"``: the subspace that its features span (Eq. 5).

    ``model`` holds the weights **as received**, before local training; ``inputs`` are the client's training inputs, as one tensor
    or in batches. They are always shuffled in the same way, because batches of a single class would span a different subspace
    from the mixed batches of training.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> list(projection(net, torch.rand(8, 1, 2, 2)))
    ['matrix']
    """
    network = _network(model)

    def extract(x: Tensor) -> Tensor:
        return apply(network.features, network, Samples(x))

    def drawn(x: Tensor) -> Tensor:
        return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: options.sample].to(x.device)]

    # given batches, only their features are held together in memory
    features = extract(drawn(inputs)) if isinstance(inputs, Tensor) else drawn(torch.cat([extract(x) for x in inputs]))
    return ArrayRecord({name: t.cpu() for name, t in subspace(features, options).items()})


class _Given(Ready):
    """Weights computed beforehand."""

    def __init__(self, table: Tensor):
        self.table = table

    def weights(self, samples: Samples) -> Tensor:
        """(n, teachers)."""
        return self.table


class FedDF(FedAvg):
    """FedAvg, then ensemble distillation on the server's unlabelled inputs (Lin et al., NeurIPS 2020).

    ``pool`` holds inputs in the model's format, ``(n, ...)``. Further keyword arguments are those of Flower's ``FedAvg``.

    Before::

        strategy = FedAvg(fraction_train=0.5)

    After::

        strategy = FedDF(Net(), pool, fraction_train=0.5)
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Tensor,
        *,
        distillation: Distillation = Distillation(),
        ensemble: Space = "logits",
        seed: int = 0,
        **fedavg: Any,
    ):
        super().__init__(**fedavg)
        if len(pool) == 0:
            raise FedstillError("the pool is empty")
        self.student, self.teacher = _network(model), _network(copy.deepcopy(model))
        self.pool = Samples(pool)
        self.distillation, self.ensemble, self.seed = distillation, ensemble, seed
        self.sent: State = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[FlowerMessage]:
        """As FedAvg; also keeps a copy of the weights sent to the clients."""
        self.sent = {name: tensor.clone() for name, tensor in arrays.to_torch_state_dict().items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the sound replies, then distil all of them into the average (Algorithm 1, lines 6 to 10)."""
        sound = self._sound(replies)
        if not sound:
            return None, None
        contents = [content for content, _ in sound]
        messages = [message for _, message in sound]
        merged = weighted_sum([message.group("model") for message in messages], self.shares(messages))
        teachers = [Teacher(str(k), partial(self._teacher, message)) for k, message in enumerate(messages)]
        weighting = _Given(self.weights(messages))
        table = ensemble_table(
            teachers,
            self.pool,
            weighting,
            space=self.ensemble,
            temperature=self.distillation.temperature,
            direction=self.distillation.direction,
        )
        with torch.random.fork_rng(devices=[]):  # dropout draws from torch's own generator
            torch.manual_seed(subseed(self.seed, "fuse", server_round))
            done = distil(
                _load(self.student, merged),
                self.pool,
                table,
                self.learning(server_round),
                rng=stream(self.seed, "distil", server_round),
            )
        log.info("distilled %d teachers in %d steps, loss %.4f to %.4f", len(sound), done.steps, done.first_loss, done.last_loss)
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return ArrayRecord(clone(self.student.body.state_dict())), metrics

    def _teacher(self, message: Message) -> Whole:
        return _load(self.teacher, message.group("model"))

    def learning(self, server_round: int) -> Distillation:
        """The options of distillation in this round."""
        return self.distillation

    def shares(self, messages: Sequence[Message]) -> list[float]:
        """The weight of each reply in the average: by its number of examples."""
        counts = [float(message.values["samples"]) for message in messages]
        return [count / sum(counts) for count in counts]

    def weights(self, messages: Sequence[Message]) -> Tensor:
        """The weight of each teacher for each sample of the pool, (n, teachers): all equal."""
        return torch.full((len(self.pool), len(messages)), 1 / len(messages))

    requires: tuple[str, ...] = ("model",)

    def fault_of(self, message: Message) -> str | None:
        """Why the other parts of a reply, besides its model, cannot be used, or None."""
        return None

    def _sound(self, replies: Iterable[FlowerMessage]) -> list[tuple[RecordDict, Message]]:
        """The usable replies; the log names the others."""
        found = []
        for reply in replies:
            reason = str(reply.error.reason) if reply.has_error() else None
            if reason is None:
                try:
                    message = self._read(reply.content)
                    reason = fault(message, self.requires, self.student.body.state_dict()) or self.fault_of(message)
                except FedstillError as error:
                    reason = first_line(error)
                except (KeyError, ValueError, TypeError) as error:
                    reason = reason_of(error)
            if reason is None:
                found.append((reply.content, message))
            else:
                log.warning("reply of node %s is not used: %s", reply.metadata.src_node_id, reason)
        return found

    def _read(self, content: RecordDict) -> Message:
        """A reply as a fedstill message: its arrays are the group ``model``, other array records keep their names."""
        metrics = next(iter(content.metric_records.values()))
        samples: Any = metrics[self.weighted_by_key]
        parts = {}
        for name, record in content.array_records.items():
            group = "model" if name == self.arrayrecord_key else str(name)
            whole = from_records(RecordDict({"tensors": record, "values": ConfigRecord()}))
            parts[group] = whole.tensors
        return Message.of(**parts, samples=int(samples))


class FedD3A(FedDF):
    """FedDF with teachers weighted, sample by sample, by how near the sample is to their domain (Su, Li and Xue, 2022).

    Clients add :func:`projection` of the received weights to their replies.
    """

    requires = ("model", "projection")

    def __init__(self, model: nn.Module, pool: Tensor, *, options: FedD3AOptions = FedD3AOptions(), **rest: Any):
        super().__init__(model, pool, **{"distillation": options.distillation, "ensemble": options.ensemble, **rest})
        if options.weighting not in ("soft", "projection", "onehot") or options.merge not in ("uniform", "examples"):
            raise FedstillError(
                "this strategy has weighting 'soft' or 'onehot' and merge 'uniform' or 'examples', not "
                f"'{options.weighting}' and '{options.merge}': use FedDF for equal weights, or fedstill's own engine for others"
            )
        self.options, self.projection = options, Projection.model_validate(options.weighting_options)
        self.rounds = 1
        self.width = apply(self.student.features, self.student, self.pool.take(slice(0, 1))).shape[1]  # of the features

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **rest: Any) -> Result:
        """As FedAvg; the server's learning rate decays over all rounds."""
        self.rounds = num_rounds
        return super().start(grid, initial_arrays, num_rounds, *args, **rest)

    def learning(self, server_round: int) -> Distillation:
        """The options of distillation, with the learning rate of this round."""
        optimizer = self.distillation.optimizer
        rate = learning_rate(optimizer.lr, self.options.rate, server_round, self.rounds)
        return self.distillation.model_copy(update={"optimizer": optimizer.model_copy(update={"lr": rate})})

    def fault_of(self, message: Message) -> str | None:
        """Why a reply's projection does not fit this network's features, or None."""
        return projection_fault(message.group("projection"), self.width)

    def shares(self, messages: Sequence[Message]) -> list[float]:
        """Equal weights, as in the paper, unless ``merge = "examples"``."""
        return super().shares(messages) if self.options.merge == "examples" else [1 / len(messages)] * len(messages)

    def weights(self, messages: Sequence[Message]) -> Tensor:
        """Eq. 6, with the features of the model that was sent to the clients."""
        network = _load(self.teacher, self.sent)
        z = apply(network.features, network, self.pool)
        r = proximity(z, [message.group("projection") for message in messages])
        if self.options.weighting == "onehot":
            return one_hot_weights(r)
        return soft_weights(r, unbiased=self.projection.unbiased, temperature=self.projection.temperature)


def _network(model: nn.Module) -> Whole:
    return Whole(model, f"model '{type(model).__name__}'")


def _load(network: Whole, state: State) -> Whole:
    with torch.no_grad():
        for name, tensor in network.body.state_dict().items():
            tensor.copy_(state[name])
    return network
