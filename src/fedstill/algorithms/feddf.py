"""FedDF: fuse the clients' models by distilling their ensemble on unlabelled data.

Lin, Kong, Stich and Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020. Algorithm 1 for one
architecture; Algorithm 3 for several, where each prototype is averaged over its own clients and distilled from *all* received
models. Every part is an option here, so other systems that distil on the server also build on this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from typing_extensions import TypeVar

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Server, algorithm
from fedstill.algorithms import masked_votes, secure_average
from fedstill.algorithms.moon import Contrastive, contrastive_terms
from fedstill.algorithms.private_votes import check_votes, note_votes, private_votes
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.core.options import Part, validated
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.distillation.transfer import note_personal, transfer
from fedstill.fusion.ensemble import Space
from fedstill.fusion.feature_map import note_features
from fedstill.fusion.kept import speakers_of
from fedstill.fusion.line import Line, pool_share
from fedstill.fusion.merges import MergeName, make_merge
from fedstill.fusion.sources import Source, check_source, draw, fresh_inputs, reports_for
from fedstill.fusion.sources.generator import Frozen, check_range, frozen_generator
from fedstill.fusion.sources.statistics import note_statistics
from fedstill.fusion.teacher import Teacher, teachers_of
from fedstill.fusion.weightings import Weighting, WeightingContext, fault_of, make_weighting, options_kind, report_of
from fedstill.fusion.weightings.private_votes import NAME as PRIVATE_VOTES
from fedstill.fusion.weightings.private_votes import PrivateVotes
from fedstill.fusion.worst import DropWorst, check_worst, drop_teachers, drop_worst
from fedstill.local.reports import after_training, make_report
from fedstill.local.reports.statistics import reply_fault
from fedstill.local.terms import distil_from, proximal
from fedstill.local.update import local_update
from fedstill.models.heads import HeadOnly
from fedstill.models.network import Network
from fedstill.models.trunk import Top
from fedstill.task import Task
from fedstill.training.fit import Term

__all__ = ["FedDF", "FedDFOptions", "FedDFT"]


class Personal(Part):
    """How a client with its own model learns from the server's: ``weight * T^2 * KL(global || local)``."""

    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the term; 0 disables it."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature T of both softmaxes."""


class FedDFOptions(Options):
    """Every part of a system that distils on the server; the defaults are the paper's."""

    merge: MergeName = "examples"
    """How the clients' models are merged into the student's start (FedDF, Algorithm 1, line 6)."""

    source: Source = Source()
    """The samples that the teachers predict."""

    weighting: str = "uniform"
    """How much each teacher counts for each sample."""

    weighting_options: dict[str, Any] = {}
    """Options of the weighting, listed with each weighting."""

    ensemble: Space = "logits"
    """What is averaged over the teachers: their logits (FedDF's AVGLOGITS), their probabilities, or the divergences from each
    teacher."""

    distillation: Distillation = Distillation()
    """How the student learns."""

    drop_worst: DropWorst | None = None
    """Leave out clients that predict no better than chance (FedDF, Table 3); needs ``data.validation``."""

    proximal: Annotated[float, Field(ge=0)] = 0.0
    """Weight mu of FedProx's term in the clients' objective (FedDF, Table 8)."""

    contrastive: Contrastive | None = None
    """MOON's term in the clients' objective."""

    line: Line | Literal[False] = Line()
    """How far a round goes from the average to the student: a judge compares points between them. ``false`` takes the student
    itself, as in the paper."""
    personal: Personal = Personal()
    """How clients learn from the server's model if they keep their own (``model.student``): the term ``weight * T^2 * KL(server
    || client)``."""

    @model_validator(mode="after")
    def _resolve(self) -> FedDFOptions:
        """Check and complete the weighting's options."""
        if self.weighting == PRIVATE_VOTES:
            raise FedstillError(f"weighting = '{PRIVATE_VOTES}' is for fuse; in a run, set privacy.votes")
        kind = options_kind(self.weighting)
        if kind is not None:
            found = validated(kind, self.weighting_options, "algorithm.weighting_options")
            object.__setattr__(self, "weighting_options", found.model_dump(mode="json", exclude_none=True))
        return self


FedDFT = TypeVar("FedDFT", bound=FedDFOptions, covariant=True, default=FedDFOptions)

# What the authors' code does where it differs from the paper (docs/feddf.md)
AUTHORS_CODE: Mapping[str, Any] = {
    "merge": "uniform",
    "distillation": {"batch_size": 64, "student_norm": "train", "fresh": True, "augment": {"flip": True, "crop": 4}},
}


class FedDFPreset(FedDFOptions):
    """FedDF's own options."""

    preset: Literal["paper", "authors-code"] = "paper"
    """``authors-code`` changes the paper's defaults to those of the authors' code (docs/feddf.md)."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The defaults of the authors' code."""
        return AUTHORS_CODE if given.get("preset") == "authors-code" else {}


@algorithm
class FedDF(Algorithm[FedDFT]):
    """Average, then distil the ensemble into the average."""

    name = "feddf"
    title = "FedDF"
    paper = "Lin et al., NeurIPS 2020"
    parts = {
        "merge": "average by examples",
        "source": "unlabelled data",
        "weighting": "uniform",
        "distillation": "mean of logits, KL(teachers || student), Adam with cosine",
    }
    has_ensemble = True
    private_items: ClassVar[Sequence[str]] = ("model",)
    public_structure = True
    Options: type[FedDFT] = FedDFPreset  # type: ignore[assignment]  # a subclass names its own

    def __init__(self, task: Task, options: FedDFT | None = None):
        super().__init__(task, options)
        check_worst(task, self.options.drop_worst)
        self.report = report_of(self.options.weighting)
        self.settings = dict(self.options.weighting_options)
        self.described = reports_for(self.options.source)  # the reports that the source draws from
        self.personal = task.config.model.student is not None
        if self.personal and (self.options.proximal or self.options.contrastive or task.config.model.buffers == "local"):
            raise FedstillError(
                "proximal, contrastive and model.buffers = 'local' need clients that train the server's own model"
            )
        if self.options.source.generator is not None:
            check_range(task)
        if self.options.source.kind in ("data", "mixture") and self.needs_pool(task):
            raise FedstillError(f"{self.name} distils on unlabelled data: set data.server, data.target or data.holdout")
        check_source(self.options.source, task)
        check_votes(self)
        masked_votes.check(self)
        self.masked = masked_votes.is_masked(task)
        if self.report == "projection" and task.config.model.buffers == "local":
            raise FedstillError(
                f"weighting = '{self.options.weighting}' compares features under one backbone, but model.buffers = 'local' gives "
                "every client its own: use 'average' or 'recalibrate'"
            )

    def needs_pool(self, task: Task) -> bool:
        """Whether the source needs unlabelled data that the task does not have."""
        data = task.config.data
        shares = self.options.source.shares if self.options.source.kind == "mixture" else {"data": 1.0}
        return bool(shares.get("data")) and not (data.server or data.target or data.holdout)

    # -- personal models: the server has one public structure, every client its own (FedD3A, section 3 and Figure 6) --------

    def start(self) -> Server:
        """Weights for every prototype, or for the public structure alone."""
        self.check_generator()
        return (
            Server({self.task.networks.student: self.task.networks.initial(self.task.networks.student)})
            if self.personal
            else super().start()
        )

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The client's own prototype, or the public model and its name."""
        if self.masked:
            return masked_votes.instruct(self, server, client, round)
        if not self.personal:
            return super().instruct(server, client, round)
        return Message.of(model=server.models[self.task.networks.student], prototype=self.task.networks.student)

    def update(self, message: Message, client: Client) -> Message:
        """Train from the global weights. If models are personal, continue from the client's own weights with the global model as
        a teacher, and keep the result."""
        if not self.personal:
            return local_update(message, client, self.terms(message, client))
        teacher = client.task.networks.load(self.task.networks.student, message.group("model"), role="global")
        own = client.memory.group("personal") or client.task.networks.initial(client.prototype)
        wanted = self.options.personal
        term = distil_from(teacher, wanted.weight, wanted.temperature)
        reply = local_update(message, client, [term] if wanted.weight else [], start=own)
        client.memory = client.memory.with_parts(personal=reply.group("model"))
        return reply

    # -- the client (Algorithm 2) ------------------------------------------------------------------------------------------

    def terms(self, message: Message, client: Client) -> list[Term]:
        """The terms of the local objective besides cross-entropy; FedDF itself adds none."""
        terms: list[Term] = []
        if self.options.proximal:
            terms.append(proximal(message.group("model"), self.options.proximal))
        if self.options.contrastive:
            terms.extend(contrastive_terms(message, client, self.options.contrastive.mu, self.options.contrastive.temperature))
        return terms

    def phases(self, round: int) -> Sequence[str]:
        """One exchange; four if votes go through a secure sum."""
        return secure_average.PHASES if self.masked else super().phases(round)

    def required(self, phase: str) -> Sequence[str]:
        """The model; none if votes go through a secure sum."""
        return secure_average.required(phase) if self.masked else super().required(phase)

    def sent(self) -> Sequence[str]:
        """The model, and the reports that the weighting and the source need."""
        return (*super().sent(), *([self.report] if self.report is not None else []), *self.described)

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Local training, and the reports that the weighting and the source need."""
        if self.masked:
            return masked_votes.train(self, message, client, phase, self.terms(message, client))
        early = self.reported(message, client, late=False)
        early |= {name: make_report(name, message, client, self.options.source.options or {}) for name in self.described}
        reply = self.update(message, client)
        if self.options.contrastive:
            client.memory = client.memory.with_parts(previous=reply.group("model"))
        return reply.with_parts(**early, **self.reported(message, client, late=True))

    def reported(self, message: Message, client: Client, late: bool) -> dict[str, State]:
        """The report that the weighting needs, if it is made with the received weights, or if ``late`` with the trained ones."""
        if self.report is None or after_training(self.report) != late:
            return {}
        return {self.report: make_report(self.report, message, client, self.settings)}

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """A reply without a usable report is dropped."""
        if self.masked:
            return masked_votes.fault(self, server, client, message)
        if "statistics" in self.described:
            problem = reply_fault(self.task, client, message.group("statistics"))
            if problem is not None:
                return problem
        if self.report is None:
            return None
        backbone = self.task.networks.student if self.personal else self.task.clients[client].prototype
        return fault_of(self.options.weighting, message.group(self.report), self.task.networks.get(backbone).feature_dim)

    # -- the server (Algorithm 1, lines 6 to 10; Algorithm 3) ----------------------------------------------------------------

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Average each prototype over its own clients, then distil each from all received models."""
        if self.masked:
            return masked_votes.fuse(self, server, replies, round)
        return self.fused(server, self.trusted(replies, round), round)

    def trusted(self, replies: Sequence[Reply], round: Round) -> Sequence[Reply]:
        """The replies that are not dropped (Table 3)."""
        return drop_worst(self.task, replies, self.options.drop_worst, round)

    def fused(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Lines 6 to 13 with these replies."""
        if self.personal:
            note_personal(self.task, replies, round)
        merged = self.merge(server, replies, round)
        teachers = self.teachers(server, replies, round)
        samples = self.draw(server, round, replies)
        weighting = self.weighting(server, teachers, round)
        starts = self.starts(server, merged, round)
        models, held = transfer(
            self.task,
            starts,
            teachers,
            samples,
            weighting,
            self.distillation(round),
            round,
            space=self.options.ensemble,
            view=self.view,
            hold=pool_share(self),
            inputs=fresh_inputs(self.options.source, self.task, self.generator(server))
            if self.options.distillation.fresh
            else None,
            snapshots=self.snapshots,
        )
        values = server.values if not isinstance(weighting, PrivateVotes) else note_votes(self, weighting, server, round)
        if not self.personal:  # a public structure is not an average of clients
            round.offer(merged, models, held, view=self.view)
        return Server({**merged, **models}, server.parts, values)

    @property
    def snapshots(self) -> int:
        """How many early states of a student are judged."""
        wanted = self.options.line.snapshots if self.options.line and not self.personal else 0
        if wanted and self.options.distillation.student_norm != "frozen":
            raise FedstillError("line.snapshots needs student_norm = 'frozen': otherwise statistics are set only at the end")
        return wanted

    def draw(self, server: Server, round: Round, replies: Sequence[Reply] = ()) -> Samples:
        """Line 8: the samples that the teachers predict."""
        if "statistics" in self.described:
            note_statistics(replies, round)
            note_features(self.task, server.models, replies, round)
        return draw(self.options.source, self.task, self.source_rng(round), self.generator(server), replies)

    def generator(self, server: Server) -> nn.Module | None:
        """The system's own generator if it has one, or the frozen one that ``source.generator`` names."""
        return self.frozen.module if self.frozen is not None else None

    @cached_property
    def frozen(self) -> Frozen | None:
        """The frozen generator, which only the server has."""
        spec = self.options.source.generator
        return frozen_generator(spec, self.task) if spec is not None else None

    def check_generator(self) -> None:
        """Refuse a frozen generator that does not fit, before any client trains."""
        if self.frozen is None or not self.frozen.features:
            return
        if self.options.source.kind != "generator" or self.report in ("projection", "discriminator"):
            raise FedstillError(
                f"source.generator = '{self.options.source.generator}' makes features, which need source.kind = 'generator' "
                "and a weighting that does not use inputs, such as 'uniform'"
            )

    def view(self, network: Network) -> Network:
        """The part of a network that takes the samples: all of it, or the head alone if they are features before it."""
        features = self.described or (self.frozen is not None and self.frozen.features)
        return HeadOnly(network) if features and not isinstance(network, Top) else network

    def merge(self, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, State]:
        """Line 6: the average of each prototype's clients, or another merge. A public structure stays unchanged, since no client
        trains it."""
        if self.personal:
            return server.models
        return make_merge(self.options.merge)(self.task, server, replies, round)

    def teachers(self, server: Server, replies: Sequence[Reply], round: Round) -> list[Teacher]:
        """Line 9: all received models, of all prototypes, except those that ``drop_worst`` excludes from teaching."""
        return teachers_of(self.task, drop_teachers(self.task, replies, self.options.drop_worst, round))

    def weighting(self, server: Server, teachers: Sequence[Teacher], round: Round) -> Weighting:
        """How much each teacher counts for each sample."""
        context = WeightingContext(
            teachers,
            round.rng("weighting"),
            self.task,
            server,
            self.settings,
            round.number,
            round.total,
        )
        if self.task.config.evaluation.keep_ensemble and round.number == round.total:
            round.speakers = speakers_of(self.task, self.options, self.settings, server, teachers, round)
        if self.task.config.privacy.votes is not None:
            return private_votes(self.task.config.privacy.votes, context, server)
        return make_weighting(self.options.weighting, context)

    def distillation(self, round: Round) -> Distillation:
        """How the students learn in this round. A public structure has no averaged BatchNorm statistics to freeze, so it takes
        the pool's."""
        options = self.options.distillation
        if self.personal and options.student_norm == "frozen":
            return options.model_copy(update={"student_norm": "recalibrate"})
        return options

    def starts(self, server: Server, merged: dict[str, State], round: Round) -> dict[str, State]:
        """Where the students start (Table 5): the average, the previous global model, or from scratch."""
        start = self.options.distillation.start
        if start == "previous":
            return server.models
        if start == "scratch":
            return {name: self.task.networks.initial(name) for name in merged}
        return merged

    def source_rng(self, round: Round) -> torch.Generator:
        """The random stream for generated samples and noise; without ``redraw``, the same every round."""
        return round.rng("source") if self.options.source.redraw else Round(0, round.total, round.seed).rng("source")
