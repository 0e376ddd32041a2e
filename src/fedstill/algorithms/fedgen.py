"""FedGen: the server trains a generator of features with the clients' heads, and clients learn from the generated features.

Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021. The server's model is
FedAvg's; the generator, sent along with it, transfers the knowledge.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.algorithm import Client, Reply, Round, Server, algorithm
from fedstill.algorithms.counting import Counting
from fedstill.algorithms.fedavg import FedAvgOptions
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State, clone
from fedstill.core.options import Positive
from fedstill.fusion.distillation.diversity import diversity_loss
from fedstill.fusion.sources.generator import generator_for
from fedstill.fusion.teacher import teachers_of
from fedstill.fusion.weightings.counts import ClassWeights, class_weights, weighed
from fedstill.models.generator import Generator
from fedstill.task import Task
from fedstill.training.fit import Batch, DataFree, PerSample, Term
from fedstill.training.optimizers import make_optimizer, optimizer_state, restore_optimizer
from fedstill.training.options import Optimizer

__all__ = ["FedGen", "FedGenOptions", "fedgen_loss"]


class FedGenOptions(FedAvgOptions):
    """The values of the authors' code for MNIST."""

    noise_dim: Positive = 32
    """Width of the generator's noise."""

    hidden: Positive = 256
    """Width of the generator's hidden layer."""

    steps: Positive = 50
    """Steps of the generator in a round."""

    batch_size: Positive = 32
    """Generated features in a batch while the generator learns."""

    optimizer: Optimizer = Optimizer(name="adam", lr=3e-4, weight_decay=1e-2)
    """The generator's optimiser, whose state is kept from round to round."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.98
    """Factor of the generator's learning rate from one round to the next."""

    teacher: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the clients' cross-entropy in the generator's loss."""

    adversarial: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the student's disagreement with the clients in the generator's loss; 0 in every published configuration."""

    class_weights: ClassWeights = "sample"
    """How clients' weights for the classes enter the generator's loss. ``sample``: sample by sample, the evident intent.
    ``authors-code``: the product of the mean weight and the mean loss, which the code's tensor shapes give; its counts start at
    1, and its adversarial term is divided by the number of classes."""

    diversity: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the diversity loss in the generator's loss."""

    generative: Annotated[float, Field(ge=0)] = 10.0
    """Weight of the cross-entropy on generated features in a client's loss, from the second round on."""

    latent: Annotated[float, Field(ge=0)] = 10.0
    """Weight of the divergence from the predictions for generated features of the same labels, from the second round on."""

    term_decay: Annotated[float, Field(gt=0, le=1)] = 0.98
    """Factor of both weights in the clients' loss from one round to the next."""

    generated_batch: Positive = 32
    """Generated features that accompany each of a client's batches."""


def fedgen_loss(
    heads: Sequence[nn.Module], shares: Tensor, made: Tensor, labels: Tensor, form: ClassWeights = "sample"
) -> Tensor:
    """``sum_k mean_i w_{k, y_i} CE(h_k(g_i), y_i)``: every client judges the labels that it knows. The authors' code has
    ``sum_k (mean_i w_{k, y_i}) (mean_i CE)``, in which a client also judges labels that it does not know.

    >>> head = nn.Linear(1, 2)
    >>> _ = nn.init.zeros_(head.weight), nn.init.zeros_(head.bias)  # predicts 1/2 for both classes: each term is log 2
    >>> shares = torch.tensor([[1.0, 0.25], [0.0, 0.75]])
    >>> round(float(fedgen_loss([head, head], shares, torch.zeros(2, 1), torch.tensor([0, 1]))), 4)
    0.6931
    """
    losses = [F.cross_entropy(head(made), labels, reduction="none") for head in heads]
    return torch.stack([weighed(shares[k, labels], loss, form) for k, loss in enumerate(losses)]).sum()


@algorithm
class FedGen(Counting[FedGenOptions]):
    """FedAvg with a generator of features, which learns from the clients' heads and teaches the clients."""

    name = "fedgen"
    title = "FedGen"
    paper = "Zhu et al., ICML 2021"
    parts = {
        "local term": "generated-feature",
        "report": "label counts",
        "merge": "average by examples",
        "source": "trained generator",
        "weighting": "class counts",
    }
    requires = ("model", "counts")
    Options = FedGenOptions

    def __init__(self, task: Task, options: FedGenOptions | None = None):
        super().__init__(task, options)
        widths = {task.networks.get(name).feature_dim for name in task.networks.prototypes}
        if len(widths) > 1:
            raise FedstillError(f"fedgen generates features and needs models with features of equal width, not {sorted(widths)}")
        self.width = widths.pop()

    def generator(self, state: State | None = None) -> Generator:
        """The generator, with ``state`` or its initial weights."""
        wanted = self.options
        return generator_for(
            self.task, "features", state, noise_dim=wanted.noise_dim, feature_dim=self.width, hidden=wanted.hidden
        )

    # -- the client --------------------------------------------------------------------------------------------------------

    def terms(self, message: Message, client: Client) -> Sequence[Term]:
        """Terms on generated features with known labels, from the second round on (before that, the generator is untrained)."""
        if client.round == 1:
            return super().terms(message, client)
        generator = self.generator(message.group("generator")).eval()
        fade, sample = self.options.term_decay ** (client.round - 1), self.task.config.privacy.sample
        expected = min(self.local.batch_size, len(client.data)) if sample is not None else None
        return (*super().terms(message, client), *self.generated_terms(generator, fade, expected))

    def generated_terms(self, generator: Generator, fade: float, expected: int | None) -> Sequence[Term]:
        """``a_t CE(h(G(y')), y') + b_t KL( softmax h(G(y)) || h(x) )``, where y' is uniform and y are the batch's labels. The
        first part trains h alone; the target of the second is constant. With DP-SGD, where ``expected`` is the expected size of a
        batch, they are two terms: the first uses no sample, the second is a mean over the samples."""
        options = self.options

        def generative(batch: Batch) -> Tensor:
            with torch.no_grad():
                made, labels = generator.sample(options.generated_batch, batch.rng)
            assert labels is not None
            # the authors' code divides the sum over the generated batch by the size of the real one
            scale = options.generated_batch / (expected or len(batch.x))
            return options.generative * (scale * F.cross_entropy(batch.network.head(made), labels))

        def latent(batch: Batch) -> Tensor:
            with torch.no_grad():
                same, _ = generator.sample(len(batch.y), batch.rng, batch.y)
                target = F.log_softmax(batch.network.head(same), dim=1)
            apart = F.kl_div(F.log_softmax(batch.logits, dim=1), target, reduction="batchmean", log_target=True)
            return options.latent * apart

        if expected is None:
            return (lambda batch: fade * (generative(batch) + latent(batch)),)
        return DataFree(lambda batch: fade * generative(batch)), PerSample(lambda batch: fade * latent(batch))

    # -- the server --------------------------------------------------------------------------------------------------------

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The model, and the generator once it is trained."""
        message = super().instruct(server, client, round)
        return message if round.number == 1 else message.with_parts(generator=server.parts["generator"])

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Train the generator with the clients' heads, then average the models."""
        replies = self.trusted(replies, round)  # a dropped client does not teach either
        generator, memory = self.train_generator(server, replies, round)
        merged = self.averaged(server, replies, round)
        parts = {**merged.parts, "generator": clone(generator.state_dict()), "generator-optimizer": memory}
        return Server(merged.models, parts, merged.values)

    def train_generator(self, server: Server, replies: Sequence[Reply], round: Round) -> tuple[Generator, State]:
        """The generator after this round's steps, and its optimiser's state for the next."""
        options, device = self.options, self.task.device
        heads = [copy.deepcopy(teacher.load().head).eval() for teacher in teachers_of(self.task, replies)]
        student = self.task.networks.load(
            self.task.networks.prototypes[0], server.models[self.task.networks.prototypes[0]], role="student"
        ).head
        counts = torch.stack([reply.part("counts")["labels"] for reply in replies])
        coded = options.class_weights == "authors-code"
        shares = class_weights(counts + 1 if coded else counts).to(device)
        known = torch.nonzero(counts.sum(0) > 0).flatten()  # labels that some client of this round has
        generator = self.generator(server.parts["generator"]).train()
        parameters = list(generator.parameters())
        optimizer = make_optimizer(options.optimizer, parameters, options.optimizer.lr * options.decay ** (round.number - 1))
        restore_optimizer(optimizer, generator.named_parameters(), server.parts.get("generator-optimizer", {}))
        rng = round.rng("generator")
        losses: list[Tensor] = []
        for step in range(options.steps):
            labels = known[torch.randint(len(known), (options.batch_size,), generator=rng)].to(device)
            noise = generator.draw(options.batch_size, rng)
            made = generator(noise, labels)
            loss = options.teacher * fedgen_loss(heads, shares, made, labels, options.class_weights)
            loss = loss + options.diversity * diversity_loss(noise, made)
            if options.adversarial:
                together = torch.stack([shares[k, labels][:, None] * head(made) for k, head in enumerate(heads)]).sum(0)
                apart = F.kl_div(
                    F.log_softmax(student(made), 1), F.log_softmax(together, 1), reduction="batchmean", log_target=True
                )
                loss = loss - options.adversarial * apart / (together.shape[1] if coded else 1)
            for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = slope
            optimizer.step()
            losses.append(loss.detach())
            round.progress("generator", step + 1, options.steps)
        last = float(losses[-1])
        if last != last:
            raise FedstillError(f"round {round.number}: the generator's loss is not a number; lower algorithm.optimizer.lr")
        round.note(generator_loss=last)
        return generator, optimizer_state(optimizer, generator.named_parameters())
