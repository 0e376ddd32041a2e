"""DaFKD: distil on generated samples, with each teacher weighted by its domain discriminator's belief in the sample.

Wang et al., DaFKD: Domain-aware Federated Knowledge Distillation, CVPR 2023. Clients train a classifier and a personal
discriminator that share their layers, against a generator. The server averages models and generators, draws samples, weights
each teacher's prediction of each sample (Eq. 7) and distils (Eq. 8). Appendix A moves the game to features; Appendix B, which
keeps models and discriminators with the clients, is in :mod:`fedstill.algorithms.dafkd_secure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from fedstill.algorithm import Client, Reply, Round, Server, algorithm
from fedstill.algorithms import dafkd_secure as secure
from fedstill.algorithms.feddf import FedDF, FedDFOptions
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State, clone
from fedstill.core.options import Part, Positive
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space, ensemble_table, summed_space
from fedstill.fusion.generated import generator_quality
from fedstill.fusion.merges import MergeName, by_examples, uniform, weighted_sum
from fedstill.fusion.sources import Source
from fedstill.fusion.sources.generator import check_generated, check_range, class_grid, generator_for, shows_images
from fedstill.fusion.teacher import Teacher
from fedstill.local.adversarial import Adversarial, Discriminator, Game
from fedstill.local.private import client_fit
from fedstill.models.generator import Generator
from fedstill.models.heads import HeadOnly
from fedstill.models.network import Network
from fedstill.task import Task
from fedstill.training.batches import steps_an_epoch
from fedstill.training.options import Optimizer
from fedstill.training.schedules import learning_rate

__all__ = ["DaFKD", "DaFKDOptions", "GeneratorPart"]


class GeneratorPart(Part):
    """A generator."""

    kind: str = "mlp-conditional"
    """Architecture of the generator. ``mlp-conditional`` is the one in DaFKD's paper: two embeddings and fully connected
    layers."""

    noise_dim: Positive = 100
    """Width of the noise."""

    options: dict[str, Any] = {}
    """Further arguments of the generator's builder."""


# The game as printed, Eqs. 2 to 5, and a distillation without gradient clipping
PAPER: Mapping[str, Any] = {
    "distillation": {"clip": None},
    "adversarial": {
        "shared_gradient": 1.0,
        "generator_loss": "saturating",
        # The decay is AdamW's. Adam adds it to the gradient, where it outweighs the small gradients of the noise's embedding, and
        # the generator ends with one image per class (docs/results/dafkd.md).
        "generator_optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-3, "betas": [0.9, 0.999]},
        "mode_seeking": 0.0,
        "label": 0.0,
    },
}

# What the authors' code does where it differs from the paper (docs/dafkd.md has the table)
AUTHORS_CODE: Mapping[str, Any] = {
    "merge": "examples",
    "ensemble": "logits",
    "distillation": {
        "temperature": 20.0,
        "square": True,
        "reduction": "mean",
        "optimizer": {"name": "adam", "lr": 1e-4, "weight_decay": 0.0},
        "student_norm": "train",
        "clip": None,
    },
    "generator": {"kind": "dcgan"},
    "adversarial": {
        **PAPER["adversarial"],
        "weight": 2.0,
        "generator_loss": "non-saturating",
        "generator_optimizer": {"name": "adam", "lr": 1e-4, "weight_decay": 1e-4, "betas": [0.5, 0.99]},
        "gradient_penalty": 0.3,
        "penalty_norm": "pixel",
        "rounds": 3,
        "generator_rounds": 5,
        "epochs": 5,
        "generated_norm": "updated",
    },
    "local_optimizer": {"name": "adam", "lr": 1e-4},
    "discriminator": "shared",
    "pool_generator": "previous",
    "first_distillation": 2,
}


class DaFKDOptions(FedDFOptions):
    """The paper's values, as far as it gives them."""

    preset: Literal["paper", "converging", "authors-code"] = "paper"
    """``paper``: Eqs. 2 to 5 as printed, which generate noise even on pooled data. ``converging``: a game whose generator was
    better on pooled data, and whose discriminator leaves shared layers alone. ``authors-code``: their values (docs/dafkd.md)."""

    merge: MergeName = "uniform"
    """How the clients' models are merged (Eq. 6). Generators are averaged uniformly (Eq. 4), or by examples if this is
    ``examples``."""

    source: Source = Source(kind="generator", size=1280)
    """The samples that the teachers predict. The size is from the authors' code; the paper gives none."""

    weighting: str = "discriminator"
    """How much each teacher counts for each sample (Eq. 7)."""

    ensemble: Space = "probabilities"
    """What is averaged over the teachers (Eq. 8)."""

    distillation: Distillation = Distillation(
        steps=1600,  # from the code; the paper does not say
        batch_size=32,
        optimizer=Optimizer(name="sgd", lr=0.01, weight_decay=1e-3),  # the paper names the rate, not the optimiser
        schedule="constant",
        clip=1.0,  # not in the paper, and not in its preset
        patience=None,
    )
    """How the student learns (Eq. 8)."""

    generator: GeneratorPart = GeneratorPart()
    """The generator that the clients train."""

    adversarial: Adversarial = Adversarial(
        shared_gradient=0.0,
        generator_loss="non-saturating",
        generator_optimizer=Optimizer(name="adam", lr=1e-3, betas=(0.5, 0.999)),
        mode_seeking=0.1,
        label=1.0,
    )
    """The game of classifier, discriminator and generator."""

    local_optimizer: Optimizer | None = None
    """Optimiser of classifier and discriminator, instead of ``local.optimizer``."""

    no_sharing: bool = False
    """Make the discriminator a separate network that shares no layers (ablation, Table 3)."""

    no_correlation: bool = False
    """Give every teacher the same weight (ablation, Table 3)."""

    level: Literal["images", "features"] = "images"
    """Whether inputs are generated (images or vectors), or features of the layer before the head (Appendix A)."""

    secure: bool = False
    """Keep models and discriminators with the clients; the server learns only sums over the clients (Appendix B)."""

    discriminator: Literal["personal", "shared"] = "personal"
    """Whether each client keeps its own discriminator, or the server averages them and sends one to all."""

    pool_generator: Literal["current", "previous"] = "current"
    """The generator that samples are drawn from: this round's (Algorithm 1, line 11), or the one before (the authors' code)."""

    first_distillation: Positive = 1
    """The first round that distils; 2 in the authors' code."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of the preset, a generator of features for Appendix A, and equal weights for the ablation."""
        found = dict({"paper": PAPER, "authors-code": AUTHORS_CODE}.get(str(given.get("preset", "paper")), {}))
        if given.get("level") == "features":
            found["generator"] = {"kind": "features"}
        if given.get("no_correlation"):
            found["weighting"] = "uniform"
        return found


@algorithm
class DaFKD(FedDF[DaFKDOptions]):
    """Algorithm 1, in its order."""

    name = "dafkd"
    title = "DaFKD"
    paper = "Wang et al., CVPR 2023"
    parts = {
        "local term": "adversarial (discriminator + generator)",
        "report": "discriminator, generator",
        "merge": "uniform",
        "source": "global generator",
        "weighting": "discriminator",
        "distillation": "weighted mean of probabilities, KL(teachers || student), SGD",
    }
    private_items = ("model", "generator", "discriminator", "shared_model", "shared_generator", "answers")
    Options = DaFKDOptions

    def __init__(self, task: Task, options: DaFKDOptions | None = None):
        super().__init__(task, options)
        chosen = self.options
        self.shared = chosen.discriminator == "shared"
        if self.personal:
            raise FedstillError("dafkd's clients train the server's own models: remove model.student")
        if chosen.level == "images":
            check_generated(task, self.name)
            check_range(task)
        else:
            if chosen.no_sharing:
                raise FedstillError("no_sharing needs level = 'images': a discriminator of features has no separate layers")
            if chosen.source.kind != "generator":
                raise FedstillError("level = 'features' distils on generated features: source.kind must be 'generator'")
        if (chosen.generator.kind == "features") != (chosen.level == "features"):
            raise FedstillError(f"level = '{chosen.level}' cannot have generator.kind = '{chosen.generator.kind}'")
        if chosen.no_correlation and chosen.weighting != "uniform":
            raise FedstillError(f"no_correlation gives equal weights: remove weighting = '{chosen.weighting}'")
        if self.shared and (chosen.secure or len(task.networks.prototypes) > 1):
            raise FedstillError("discriminator = 'shared' averages discriminators: it needs one architecture and secure = false")
        if chosen.source.generator is not None:
            raise FedstillError("dafkd draws from the generator that its clients trained: remove source.generator")
        if chosen.adversarial.gradient_penalty and task.config.privacy.sample is not None:
            raise FedstillError("privacy.sample cannot clip a gradient penalty: set algorithm.adversarial.gradient_penalty = 0")
        if chosen.secure:
            secure.check(self)

    # -- in the server (lines 1 to 14) -----------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Line 2: initial classifier and generator."""
        server = super().start()
        server.parts["generator"] = clone(self.own_generator().state_dict())
        return server

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """Line 6: the classifier and the generator."""
        if round.phase in secure.LATER:
            return secure.instruct(self, server, client, round)
        message = super().instruct(server, client, round).with_parts(generator=server.parts["generator"])
        if self.shared and "discriminator" in server.parts:
            message = message.with_parts(discriminator=server.parts["discriminator"])
        return message

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Lines 9 to 13."""
        if self.options.secure:
            return secure.fuse(self, server, replies, round)
        replies = self.trusted(replies, round)  # a dropped client does not contribute to the generator either
        shares = by_examples(replies) if self.options.merge == "examples" else uniform(replies)
        parts = {"generator": weighted_sum((reply.part("generator") for reply in replies), shares)}  # Eq. 4
        if self.shared:
            parts["discriminator"] = weighted_sum((reply.part("discriminator") for reply in replies), shares)
        pool = parts["generator"] if self.options.pool_generator == "current" else server.parts["generator"]
        if not self.distils(round.number):
            return Server(self.merge(server, replies, round), parts, server.values)
        drawn_from = Server(server.models, {"generator": pool}, server.values)
        models = self.fused(drawn_from, replies, round).models  # lines 10 to 13
        self.note_quality(drawn_from, replies, round)
        return Server(models, parts, server.values)

    def note_quality(self, server: Server, replies: Sequence[Reply], round: Round) -> None:
        """Note the quality of the generator that made the pool, as judged by the ensemble."""
        if self.options.level == "images" and self.options.source.kind == "generator":
            say = partial(self.spoken, server, self.teachers(server, replies, round), round)
            round.note(generator=generator_quality(self.generator(server), round.rng("quality"), say))

    def spoken(self, server: Server, teachers: Sequence[Teacher], round: Round, samples: Samples) -> Tensor:
        """The ensemble's probabilities (n, classes)."""
        return ensemble_table(teachers, samples, self.weighting(server, teachers, round), space=self.options.ensemble).targets

    def generator(self, server: Server) -> Generator:
        """Line 11: the global generator, which makes the pool unless ``source`` names another."""
        return self.own_generator(server.parts["generator"])

    def trained_generator(self, server: Server) -> Generator:
        """The global generator."""
        return self.generator(server)

    # -- in each selected client (lines 15 to 26) --------------------------------------------------------------------------------

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Lines 16 to 26."""
        if phase in secure.LATER:
            return secure.train(self, message, client, phase)
        return super().train(message, client, phase)

    def update(self, message: Message, client: Client) -> Message:
        """Train classifier and discriminator jointly, and the generator against them; keep the discriminator in memory."""
        config, local = self.task.config, self.task.config.local
        if self.options.local_optimizer is not None:
            local = local.model_copy(update={"optimizer": self.options.local_optimizer})
        network = self.task.networks.load(client.prototype, message.group("model"))  # line 17
        generator = self.own_generator(message.group("generator"))
        mine = (message if self.shared else client.memory).group("discriminator")
        discriminator = Discriminator(network, mine, sharing=not self.options.no_sharing).train()  # line 18
        game = Game(
            discriminator,
            generator,
            self.options.adversarial,
            round=client.round,
            steps_per_epoch=steps_an_epoch(len(client.data), local, network),
            features=self.options.level == "features",
            expected=min(local.batch_size, len(client.data)) if config.privacy.sample is not None else None,
        )
        done = client_fit(  # lines 19 to 25
            network,
            client,
            local,
            lr=learning_rate(local.optimizer.lr, local.schedule, client.round, config.rounds),
            terms=[*self.terms(message, client), *game.terms],  # Eq. 9
            parameters=game.trained(network),
            beside=game.beside,
            after=game.answer,  # Eq. 3
        )
        client.memory = client.memory.with_parts(discriminator=discriminator.state())
        reply = Message.of(
            model=clone(network.state_dict()), generator=clone(generator.state_dict()), samples=len(client.data), loss=done.loss
        )
        if self.options.secure:
            return secure.withhold(reply, client)
        return reply.with_parts(discriminator=discriminator.state()) if self.sends_discriminator else reply  # line 26

    # -- parts specific to this system -----------------------------------------------------------------------------------------

    def own_generator(self, state: State | None = None) -> Generator:
        """The generator, with ``state`` or its initial weights."""
        widths = {self.task.networks.get(name).feature_dim for name in self.task.networks.prototypes}
        if self.options.level == "features" and len(widths) > 1:
            raise FedstillError(f"level = 'features' needs models with features of equal width, not {sorted(widths)}")
        part = self.options.generator
        return generator_for(self.task, part.kind, state, noise_dim=part.noise_dim, feature_dim=min(widths), **part.options)

    @property
    def space(self) -> Space:
        """Whether probabilities or logits are summed."""
        return summed_space(self.options.ensemble, self.options.distillation.direction)

    def distils(self, round: int) -> bool:
        """Whether this round distils."""
        return round >= self.options.first_distillation

    def view(self, network: Network) -> Network:
        """Generated features are fed to the heads alone (Appendix A)."""
        return HeadOnly(network) if self.options.level == "features" else network

    # -- the contents of a reply -----------------------------------------------------------------------------------------------

    def phases(self, round: int) -> Sequence[str]:
        """One exchange; more under Appendix B."""
        return secure.phases(self, round) if self.options.secure else ("train",)

    def reported(self, message: Message, client: Client, late: bool) -> dict[str, State]:
        """The report that another weighting needs; this system sends the discriminator itself."""
        return {} if self.report == "discriminator" else super().reported(message, client, late)

    @property
    def sends_discriminator(self) -> bool:
        """Whether the discriminator leaves the client: if it weights the teachers, or if all clients share one."""
        return self.shared or (self.report == "discriminator" and not self.options.secure)

    def required(self, phase: str) -> Sequence[str]:
        """Models and generators, and the discriminators if they leave the clients."""
        if self.options.secure:
            return secure.required(phase)
        return ("model", "generator", *(["discriminator"] if self.sends_discriminator else []))

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """Generators, discriminators and masked tensors must have the expected shapes, and a key must be valid."""
        network = self.task.networks.get(self.task.clients[client].prototype)
        expected: dict[str, State] = {
            "generator": server.parts["generator"],
            "discriminator": Discriminator(network, sharing=not self.options.no_sharing).state(),
            **(secure.expected(self, server, client) if self.options.secure else {}),
        }
        for name, template in expected.items():
            sent = message.group(name)
            if sent and kinds(sent) != kinds(template):
                return f"its {name} does not have the expected names and shapes"
        if self.options.secure and secure.without_key(message):
            return "no public key"
        if self.report in (None, "discriminator") or not message.group("model"):
            return None
        return super().screen(server, client, message)  # another weighting's report

    def samples(self, server: Server, round: Round) -> Tensor | None:
        """Eight rows of generated images, one column per class, from the same noise every time."""
        if self.options.level == "features" or not shows_images(self.task):
            return None
        return class_grid(self.own_generator(server.parts["generator"]), Round(0, round.total, round.seed).rng("samples"))


def kinds(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Names, shapes and types."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
