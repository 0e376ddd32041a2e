"""FedFTG: fine-tune the average on hard samples from a generator, with an ensemble that is weighted class by class.

Zhang et al., Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID Federated Learning, CVPR 2022. On the
server, generator and student play a game: the generator looks for samples on which student and clients disagree (hard samples)
but which the clients can still classify; the student learns the clients' predictions of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedstill.algorithm import Reply, Round, Server, algorithm
from fedstill.algorithms.counting import Counting
from fedstill.algorithms.dafkd import GeneratorPart
from fedstill.algorithms.fedavg import FedAvgOptions
from fedstill.core.errors import FedstillError
from fedstill.core.message import State, clone
from fedstill.core.options import Positive
from fedstill.fusion.distillation.divergence import divergence
from fedstill.fusion.distillation.diversity import diversity_loss
from fedstill.fusion.distillation.transfer import note_merged
from fedstill.fusion.line import Line
from fedstill.fusion.sources.generator import check_range, class_grid, generator_for, shows_images
from fedstill.fusion.teacher import Teacher, teachers_of
from fedstill.fusion.weightings.counts import ClassWeights, class_weights, weighed
from fedstill.models.generator import Generator
from fedstill.models.network import Network
from fedstill.models.statistics import freeze_statistics
from fedstill.task import Task
from fedstill.training.optimizers import make_optimizer
from fedstill.training.options import Optimizer

__all__ = ["FedFTG", "FedFTGOptions", "disagreement"]


# What the authors' code does where it differs from the paper (docs/dafkd.md)
AUTHORS_CODE: Mapping[str, Any] = {
    "batch_size": 50,
    "gap": "l1",
    "label_sampling": "stratified",
    "class_weights": "authors-code",
    "reduction": "mean",
    "line": False,
}


class FedFTGOptions(FedAvgOptions):
    """How generator and student play. The paper's three ideas, ``hard``, ``class_level`` and ``label_sampling``, can each be
    switched off."""

    preset: Literal["paper", "authors-code"] = "paper"
    """``authors-code`` changes the paper's defaults to those of the authors' code (docs/dafkd.md)."""

    generator: GeneratorPart = GeneratorPart(kind="conditional")
    """The generator, which must be conditional."""

    iterations: Positive = 10
    """Iterations in a round: one step of the generator for each client, then the student's steps."""

    student_steps: Positive = 5
    """Steps of the student in an iteration."""

    batch_size: Positive = 64
    """Generated samples in a batch; the authors' code has 50."""

    generator_optimizer: Optimizer = Optimizer(name="adam", lr=0.01)
    """The generator's optimiser, new in each round."""

    student_optimizer: Optimizer = Optimizer(name="sgd", lr=0.1, weight_decay=1e-3)
    """The student's optimiser, new in each round."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    """Factor of both learning rates from one round to the next."""

    hard: Annotated[float, Field(ge=0)] = 1.0
    """Weight of hard sample mining in the generator's loss."""

    classification: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the clients' cross-entropy in the generator's loss, lambda_cls."""

    diversity: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the diversity loss in the generator's loss, lambda_dis."""

    class_level: bool = True
    """Weight clients class by class; otherwise by their numbers of examples."""

    label_sampling: Literal["counts", "stratified", "uniform"] = "counts"
    """Labels of generated samples: drawn in proportion to the clients' label counts (``counts``), allotted in that proportion
    (``stratified``, the authors' code), or drawn uniformly (``uniform``)."""

    class_weights: ClassWeights = "sample"
    """How clients' weights for the classes enter the cross-entropy in the generator's loss. ``sample``: sample by sample, the
    evident intent. ``authors-code``: the product of the mean weight and the mean loss, which the code's tensor shapes give."""

    gap: Literal["kl", "l1"] = "kl"
    """How the disagreement of student and client is measured. ``kl``: KL(student || client), the paper's divergence, whose
    direction the paper leaves open. ``l1``: the mean absolute difference of the logits (the authors' code)."""

    reduction: Literal["batchmean", "mean"] = "batchmean"
    """``batchmean`` divides the student's loss by the number of samples, ``mean`` also by the number of classes (the authors'
    code)."""

    line: Line | Literal[False] = Line()
    """How far a round goes from the average to the fine-tuned model: a judge compares points between them. ``false`` takes the
    fine-tuned model itself, as in the paper."""
    student_norm: Literal["frozen", "train"] = "frozen"
    """BatchNorm of the student during fine-tuning: fixed running statistics (``frozen``), or batch statistics (``train``). The
    paper's models have no BatchNorm."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The defaults of the authors' code."""
        return AUTHORS_CODE if given.get("preset") == "authors-code" else {}


def drawn_labels(counts: Tensor, n: int, kind: str, rng: torch.Generator) -> Tensor:
    """Labels of ``n`` samples to generate, for the clients' counts (classes,). ``stratified`` gives every class the positions
    between its rounded-down cumulative shares, in random order.

    >>> drawn_labels(torch.tensor([1, 0, 3]), 6, "stratified", torch.Generator().manual_seed(0)).sort().values.tolist()
    [0, 2, 2, 2, 2, 2]
    """
    if kind != "stratified":
        chances = counts.double() if kind == "counts" else torch.ones(len(counts)).double()
        return torch.multinomial(chances, n, replacement=True, generator=rng)
    ends = ((counts.double() / counts.sum()).cumsum(0) * n).floor().long()[:-1]
    return torch.bucketize(torch.arange(n), ends, right=True)[torch.randperm(n, generator=rng)]


def disagreement(student: Tensor, teacher: Tensor, gap: str = "kl") -> Tensor:
    """How far the student is from a teacher on each sample (n,): KL(student || teacher), or the mean gap of the logits.

    >>> s, t = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]])
    >>> disagreement(s, s).item(), disagreement(s, t, "l1").item()
    (0.0, 1.0)
    """
    if gap == "l1":
        return (student - teacher).abs().mean(1)
    mine, theirs = F.log_softmax(student, 1), F.log_softmax(teacher, 1)
    return (mine.exp() * (mine - theirs)).sum(1)


@algorithm
class FedFTG(Counting[FedFTGOptions]):
    """FedAvg, fine-tuned on the server without data."""

    name = "fedftg"
    title = "FedFTG"
    paper = "Zhang et al., CVPR 2022"
    parts = {
        "report": "label counts",
        "merge": "average by examples",
        "source": "trained generator",
        "weighting": "class counts",
        "distillation": "class-level mean of probabilities, cross-entropy, SGD",
    }
    requires = ("model", "counts")
    needs = ("generator",)
    Options = FedFTGOptions

    def __init__(self, task: Task, options: FedFTGOptions | None = None):
        super().__init__(task, options)
        if len(task.networks.prototypes) > 1:
            raise FedstillError("fedftg fine-tunes one model: give every client the same architecture")
        check_range(task)

    def generator(self, state: State | None = None) -> Generator:
        """The generator, with ``state`` or its initial weights."""
        part = self.options.generator
        made = generator_for(self.task, part.kind, state, noise_dim=part.noise_dim, **part.options)
        if not made.conditional:
            raise FedstillError(f"fedftg needs a conditional generator, but generator.kind = '{part.kind}' is not")
        return made

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Average, then let generator and student play."""
        replies = self.trusted(replies, round)  # a dropped client does not teach either
        merged = self.averaged(server, replies, round)
        note_merged(self.task, merged.models, round)
        (name,) = self.task.networks.prototypes
        student = self.task.networks.load(name, merged.models[name], role="student")
        generator = self.generator(server.parts["generator"])
        self.fine_tune(student, generator, replies, round)
        tuned = {name: clone(student.state_dict())}
        round.offer(merged.models, tuned)
        return Server(tuned, {**merged.parts, "generator": clone(generator.state_dict())}, merged.values)

    def fine_tune(self, student: Network, generator: Generator, replies: Sequence[Reply], round: Round) -> None:
        """The game: the generator makes hard samples that the clients can classify, and the student learns them."""
        options, device = self.options, self.task.device
        fade = options.decay ** (round.number - 1)
        counts = torch.stack([reply.part("counts")["labels"] for reply in replies])
        shares = self.shares(counts, replies).to(device)  # alpha_k^y
        teachers = teachers_of(self.task, replies)
        rng = round.rng("generator")
        game = make_optimizer(options.generator_optimizer, list(generator.parameters()), options.generator_optimizer.lr * fade)
        learner = make_optimizer(options.student_optimizer, list(student.parameters()), options.student_optimizer.lr * fade)
        losses: list[Tensor] = []
        for iteration in range(options.iterations):
            labels = drawn_labels(counts.sum(0), options.batch_size, options.label_sampling, rng).to(device)
            noise = generator.draw(options.batch_size, rng)
            self.train_generator(generator, game, student, teachers, shares, noise, labels)
            losses += self.train_student(generator, student, learner, teachers, shares, noise, labels)
            round.progress("fine-tune", iteration + 1, options.iterations)
        curve = torch.stack(losses)
        if not bool(torch.isfinite(curve).all()):
            raise FedstillError(f"round {round.number}: fine-tuning diverged; lower algorithm.student_optimizer.lr")
        round.note(distillation={"steps": len(losses), "first": float(curve[0]), "last": float(curve[-1])})

    def shares(self, counts: Tensor, replies: Sequence[Reply]) -> Tensor:
        """The weight of each client for each class."""
        if self.options.class_level:
            return class_weights(counts)
        examples = torch.tensor([float(reply.samples) for reply in replies])
        return (examples / examples.sum())[:, None].expand(len(replies), counts.shape[1])

    def train_generator(
        self,
        generator: Generator,
        game: torch.optim.Optimizer,
        student: Network,
        teachers: Sequence[Teacher],
        shares: Tensor,
        noise: Tensor,
        labels: Tensor,
    ) -> None:
        """The generator's steps, one for each client in turn: increase disagreement, stay recognisable, stay diverse."""
        options = self.options
        student.eval()
        generator.train()
        parameters = list(generator.parameters())
        for k, teacher in enumerate(teachers):
            network = teacher.load().eval()
            weight = shares[k, labels]
            made = generator(noise, labels)
            logits = network(made)
            loss = options.diversity * diversity_loss(noise, made) / len(teachers)
            known = logits.detach() if options.gap == "l1" else logits  # the authors' code, with l1, detaches the teachers
            loss = loss - options.hard * (weight * disagreement(student(made), known, options.gap)).mean()
            known_by = weighed(weight, F.cross_entropy(logits, labels, reduction="none"), options.class_weights)
            loss = loss + options.classification * known_by
            for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = slope
            game.step()

    def train_student(
        self,
        generator: Generator,
        student: Network,
        learner: torch.optim.Optimizer,
        teachers: Sequence[Teacher],
        shares: Tensor,
        noise: Tensor,
        labels: Tensor,
    ) -> list[Tensor]:
        """The student's steps on the samples just made, towards ``sum_k alpha_k^y softmax_k``."""
        generator.eval()
        with torch.no_grad():
            made = generator(noise, labels)
            target = torch.stack(
                [shares[k, labels][:, None] * t.load().eval()(made).softmax(1) for k, t in enumerate(teachers)]
            ).sum(0)
        student.train()
        if self.options.student_norm == "frozen":
            freeze_statistics(student)
        losses = []
        for _ in range(self.options.student_steps):
            learner.zero_grad(set_to_none=True)
            # cross-entropy to the target and the divergence from it have the same gradient
            loss = divergence(student(made), target, reduction=self.options.reduction)
            loss.backward()
            learner.step()
            losses.append(loss.detach())
        return losses

    def samples(self, server: Server, round: Round) -> Tensor | None:
        """Eight rows of generated images, one column per class."""
        if not shows_images(self.task):
            return None
        return class_grid(self.generator(server.parts["generator"]), Round(0, round.total, round.seed).rng("samples"))
