"""FADA: adversarial alignment of every source with the target through features, not data.

Peng et al., Federated Adversarial Domain Adaptation, ICLR 2020. In terms of our networks: G is the backbone, the neck is the
disentangler's domain-invariant branch (give it a layer with ``model.options = { bottleneck = 256 }``), and C is the head. A
source also has the domain-specific branch, the identifiers DI (domain) and CI (class), the reconstructor R and the estimator M of
mutual information. A synchronisation:

* the server sends the target model and features ``G_t(x_t)`` of some target samples; neither side sends samples;
* a source trains ``n`` batches, alternating: the critics DI, CI and M learn (M *ascends* its bound); then G, the disentangler, C
  and R descend ``CE + align * fool(DI) + entropy * confuse(CI) + information * I(f_di; f_ds) + reconstruction * |R - f|^2``;
* the server weights the sources by dynamic attention, the ``softmax`` of how much each source's update tightens the k-means
  clusters of the target's features, merges them with these weights, and trains G_t to fool the sources' DI.

The paper synchronises after every batch. ``sync_every = n`` does so every n batches, as further exchanges of the same round.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Server, algorithm
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State, clone
from fedstill.core.options import Positive
from fedstill.core.streams import subseed
from fedstill.fusion.merges import merge_models
from fedstill.local.adversarial import generated_statistics
from fedstill.models.layers import seeded
from fedstill.models.network import Network
from fedstill.models.predict import apply
from fedstill.models.statistics import without_dropout
from fedstill.task import Task
from fedstill.training.batches import batches
from fedstill.training.fit import varied
from fedstill.training.optimizers import by_depth, make_optimizer, optimizer_state, restore_optimizer
from fedstill.training.options import Optimizer
from fedstill.training.schedules import learning_rate

__all__ = ["FADA", "Critics", "FADAOptions", "attention", "mutual_information", "within_clusters"]


class FADAOptions(Options):
    """Weights and rates are from the authors' related code (DAL, digits); there is no public code of FADA itself."""

    sync_every: Positive = 1
    """Batches between synchronisations. With 1, as in the paper, a round has as many exchanges as batches."""

    align: Annotated[float, Field(ge=0)] = 0.01
    """Weight of fooling the domain identifier."""

    entropy: Annotated[float, Field(ge=0)] = 0.01
    """Weight of confusing the class identifier on domain-specific features."""

    information: Annotated[float, Field(ge=0)] = 1e-4
    """Weight of the mutual information between domain-invariant and domain-specific features."""

    reconstruction: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the squared error of reconstructing the backbone's features from both kinds."""

    # The sum grows with the scale of the features and the number of samples, so its softmax picks the source with the smallest
    # features. The share does not.
    attention: Literal["share", "sum", "uniform"] = "share"
    """How sources are weighted: by how much their update tightens the clusters of the target's features, measured by the
    within-cluster sum of squares (``sum``, the paper) or by its share in the total (``share``), or equally (``uniform``)."""

    clusters: Positive | None = None
    """Number of k-means clusters in the attention; the number of classes if not set."""

    attended: Positive = 512
    """Number of target samples for the attention."""

    width: Positive = 256
    """Width of the hidden layers of the identifiers and of the estimator of mutual information (DAL: 256, 512)."""

    optimizer: Optimizer = Optimizer(name="adam", lr=2e-4, weight_decay=5e-4)
    """Optimiser of a source's other modules: the critics, the domain-specific branch and the reconstructor."""


class Critics(nn.Module):
    """A source's modules besides its classifier: the domain-specific branch, R, and the critics DI, CI and M."""

    def __init__(self, backbone: int, invariant: int, classes: int, width: int) -> None:
        super().__init__()

        def mlp(inside: int, outside: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(inside, width), nn.LeakyReLU(0.2), nn.Linear(width, outside))

        self.specific = nn.Sequential(nn.Linear(backbone, invariant), nn.ReLU())  # f_ds
        self.reconstructor = nn.Linear(2 * invariant, backbone)  # R
        self.domain = mlp(backbone, 1)  # DI: log-odds that a feature is the source's
        self.label = mlp(invariant, classes)  # CI
        self.information = mlp(2 * invariant, 1)  # M

    def judges(self) -> list[nn.Parameter]:
        """The parameters of the critics proper."""
        return [p for part in (self.domain, self.label, self.information) for p in part.parameters()]

    def helpers(self) -> list[nn.Parameter]:
        """The parameters that are trained together with the features."""
        return [p for part in (self.specific, self.reconstructor) for p in part.parameters()]


def mutual_information(estimator: nn.Module, one: Tensor, other: Tensor, rng: torch.Generator) -> Tensor:
    """MINE's lower bound ``E[T(x, y)] - log E[exp T(x, y')]``, where ``y'`` is ``y`` in another order.

    >>> same = lambda pairs: pairs.sum(1, keepdim=True) * 0 + 3.0  # a constant estimator
    >>> round(float(mutual_information(same, torch.ones(4, 2), torch.ones(4, 2), torch.Generator())), 6)
    0.0
    """
    order = torch.randperm(len(other), generator=rng).to(other.device)
    joint: Tensor = estimator(torch.cat([one, other], 1))
    apart: Tensor = estimator(torch.cat([one, other[order]], 1))
    size = torch.tensor(float(len(one)), device=one.device)
    return joint.mean() - (apart.logsumexp(0).squeeze() - size.log())


def within_clusters(features: Tensor, clusters: int, rng: torch.Generator, iterations: int = 10) -> float:
    """The sum of squared distances to the nearest of ``clusters`` centres that k-means finds from k-means++ starts.

    >>> pairs = torch.tensor([[0.0], [0.2], [5.0], [5.2]])
    >>> round(within_clusters(pairs, 2, torch.Generator().manual_seed(0)), 4)
    0.04
    """
    centres = features[torch.randint(len(features), (1,), generator=rng)]
    for _ in range(min(clusters, len(features)) - 1):
        nearest = torch.cdist(features, centres).amin(1).square().cpu()
        if not bool(nearest.sum() > 0):
            break
        centres = torch.cat([centres, features[torch.multinomial(nearest, 1, generator=rng)]])
    for _ in range(iterations):
        members = F.one_hot(torch.cdist(features, centres).argmin(1), len(centres)).to(features.dtype)
        number = members.sum(0)[:, None]
        centres = torch.where(number > 0, members.T @ features / number.clamp_min(1), centres)
    return float(torch.cdist(features, centres).amin(1).square().sum())


def attention(before: float, after: Sequence[float]) -> Tensor:
    """Dynamic attention: the softmax of each source's gain, ``before - after``.

    >>> [round(a, 3) for a in attention(2.0, [1.0, 2.0]).tolist()]
    [0.731, 0.269]
    """
    return (before - torch.tensor(after, dtype=torch.float64)).softmax(0)


@algorithm
class FADA(Algorithm[FADAOptions]):
    """Adversarial alignment, disentanglement, dynamic attention."""

    name = "fada"
    title = "FADA"
    paper = "Peng et al., ICLR 2020"
    parts = {
        "local term": "adversarial alignment with target features, disentanglement",
        "report": "the domain identifier",
        "merge": "dynamic attention",
        "source": "the target's unlabelled data",
    }
    requires = ("model", "domain")
    needs = ("target",)
    Options = FADAOptions

    def __init__(self, task: Task, options: FADAOptions | None = None):
        super().__init__(task, options)
        if len(task.networks.prototypes) > 1:
            raise FedstillError("fada averages the models of all sources: model.clients must name one architecture")
        self.prototype: str = task.networks.prototypes[0]

    def batches_a_round(self) -> int:
        """The number of batches that every client trains in a round: that of the largest client."""
        most = max(info.samples for info in self.task.clients.values())
        return self.local.steps or self.local.epochs * -(-most // self.local.batch_size)

    def phases(self, round: int) -> Sequence[str]:
        """One exchange per synchronisation."""
        return [f"sync-{i}" for i in range(-(-self.batches_a_round() // self.options.sync_every))]

    def steps(self, phase: str) -> int:
        """The number of batches until the next synchronisation."""
        done = int(phase.removeprefix("sync-")) * self.options.sync_every
        return min(self.options.sync_every, self.batches_a_round() - done)

    def critics(self, network: Network, inside: int, name: str) -> Critics:
        """A source's other modules with initial weights, for a backbone with features of width ``inside``."""
        device = next(network.parameters()).device
        with seeded(subseed(self.task.seed, "critics", name)):
            return Critics(inside, network.feature_dim, network.classes, self.options.width).to(device)

    @cached_property
    def backbone_width(self) -> int:
        """The width of the backbone's features."""
        network = self.task.networks.get(self.prototype)
        assert self.task.pool is not None, "a target domain is a pool"
        return apply(network.backbone, network, self.task.pool.samples.take(torch.arange(1))).shape[1]

    # -- the server sends features, not samples --------------------------------------------------------------------------------

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The target model, and its features of as many target samples as the source will have in its batches."""
        network = self.task.networks.load(self.prototype, server.models[self.prototype], role="student")
        pool = self.task.pool
        assert pool is not None, "a target domain is a pool"
        wanted = min(len(pool), self.steps(round.phase) * self.local.batch_size)
        index = torch.randperm(len(pool), generator=round.rng("features", round.phase, client))[:wanted]
        device = next(network.parameters()).device
        # with batch statistics, as for the source's own features and in `align`: DI must distinguish domains, not modes. Without
        # dropout: these features are sent, and a source would learn from the same dropout mask in every step.
        network.train()
        without_dropout(network)
        with torch.no_grad(), generated_statistics(network, "batch"):
            parts = [x for x in pool.samples.x[index].split(self.local.batch_size) if len(x) > 1]
            features = torch.cat([network.backbone(network.normalise(x.to(device))) for x in parts])
        return Message.of(model=server.models[self.prototype], target={"features": features})

    # -- the source ----------------------------------------------------------------------------------------------------------

    def train(self, message: Message, client: Client, phase: str = "sync-0") -> Message:
        """Train critics and model in turn, for the batches of this synchronisation."""
        options, local = self.options, self.local
        network = client.task.networks.load(client.prototype, message.group("model"))
        device = next(network.parameters()).device
        target = message.group("target")["features"].to(device)
        critics = self.critics(network, target.shape[1], client.id)
        kept = client.memory
        if kept.group("critics"):
            critics.load_state_dict(kept.group("critics"))
        rate = learning_rate(local.optimizer.lr, local.schedule, client.round, client.task.config.rounds)
        model_step = make_optimizer(
            local.optimizer, by_depth(network, list(network.parameters()), local.backbone_rate, rate), rate
        )
        helper_step = make_optimizer(options.optimizer, critics.helpers())
        judge_step = make_optimizer(options.optimizer, critics.judges())
        if phase != "sync-0":  # training continues across the synchronisations of a round
            restore_optimizer(model_step, network.named_parameters(), kept.group("optimizer"))
            restore_optimizer(helper_step, critics.named_parameters(), kept.group("helpers"))
            restore_optimizer(judge_step, critics.named_parameters(), kept.group("judges"))
        rng = client.rng("fit", phase)
        data = client.data.to(device)
        assert data.y is not None, "a source has labels"
        network.train()
        loss = torch.tensor(float("nan"))
        # one sample has no batch statistics, hence at least two
        for index in batches(len(data), local.batch_size, rng, steps=self.steps(phase), least=2):
            x = network.normalise(varied(network, data, index.to(device), local, rng))
            y = data.y[index.to(device)]
            f_target = target[torch.randint(len(target), (len(index),), generator=rng).to(device)]
            f = network.backbone(x)
            f_di, f_ds = network.neck(f), critics.specific(f)
            judge_step.zero_grad(set_to_none=True)
            critic_loss(critics, f.detach(), f_di.detach(), f_ds.detach(), f_target, y, rng).backward()
            judge_step.step()
            model_step.zero_grad(set_to_none=True)
            helper_step.zero_grad(set_to_none=True)
            loss = F.cross_entropy(network.head(f_di), y) + feature_loss(critics, f, f_di, f_ds, options, rng)
            loss.backward()
            if local.clip is not None:
                nn.utils.clip_grad_norm_(network.parameters(), local.clip)
            model_step.step()
            helper_step.step()
        client.memory = Message.of(
            critics=clone(critics.state_dict()),
            optimizer=optimizer_state(model_step, network.named_parameters()),
            helpers=optimizer_state(helper_step, critics.named_parameters()),
            judges=optimizer_state(judge_step, critics.named_parameters()),
        )
        identifier = clone(critics.domain.state_dict())
        return Message.of(
            model=clone(network.state_dict()), domain=identifier, samples=len(client.data), loss=float(loss.detach())
        )

    # -- the target ----------------------------------------------------------------------------------------------------------

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Compute the attention, merge, and train the target's backbone to fool the sources' identifiers."""
        weights = self.attend(server, replies, round)
        by_name = {reply.client: weight for reply, weight in zip(replies, weights, strict=True)}
        round.note(weights=by_name)
        merged = merge_models(self.task, server, replies, lambda group: [by_name[reply.client] for reply in group])
        network = self.task.networks.load(self.prototype, merged[self.prototype], role="student")
        before = server.parts.get("optimizer", {}) if round.phase != "sync-0" else {}
        memory = self.align(network, replies, weights, round, before)
        return Server({self.prototype: clone(network.state_dict())}, {**server.parts, "optimizer": memory}, server.values)

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """The domain identifier must have the expected shapes; the model is checked against its architecture."""
        found = {name: tuple(tensor.shape) for name, tensor in message.group("domain").items()}
        width, inside = self.options.width, self.backbone_width
        expected = {"0.weight": (width, inside), "0.bias": (width,), "2.weight": (1, width), "2.bias": (1,)}
        return None if found == expected else "the domain identifier in the reply has the wrong shape"

    def attend(self, server: Server, replies: Sequence[Reply], round: Round) -> list[float]:
        """The sources' attention: how much tighter each one's update makes the clusters of the target's features."""
        if self.options.attention == "uniform":
            return [1 / len(replies)] * len(replies)
        pool = self.task.pool
        assert pool is not None, "a target domain is a pool"
        index = torch.randperm(len(pool), generator=round.rng("attention", round.phase))[: self.options.attended]
        samples = pool.samples.take(index)

        def spread(state: State) -> float:
            network = self.task.networks.load(self.prototype, state, role="teacher")
            features = apply(network.features, network, samples)
            clusters = self.options.clusters or len(self.task.classes)
            within = within_clusters(features, clusters, round.rng("clusters", round.phase))
            total = float((features - features.mean(0)).square().sum())
            return within if self.options.attention == "sum" else within / max(total, 1e-12)

        gains = attention(spread(server.models[self.prototype]), [spread(reply.model) for reply in replies])
        return gains.tolist()

    def align(
        self, network: Network, replies: Sequence[Reply], weights: Sequence[float], round: Round, memory: State | None = None
    ) -> State:
        """Train G_t so that each source's DI takes its features for the source's, weighted by attention. Returns the optimiser's
        state. BatchNorm statistics move from the sources' towards the target's, the further the more batches there are between
        synchronisations."""
        pool = self.task.pool
        assert pool is not None, "a target domain is a pool"
        device = next(network.parameters()).device
        identifiers = []
        for reply in replies:
            state = reply.part("domain")
            critics = self.critics(network, state["0.weight"].shape[1], reply.client)
            critics.domain.load_state_dict(state)
            identifiers.append(critics.domain.requires_grad_(False))
        inside = {id(p) for part in (network.neck, network.head) for p in part.parameters()}
        # with the sources' optimiser: `align` weights fooling against their cross-entropy, and a separate optimiser could undo
        # this weight (a factor of the loss has no effect on Adam)
        rate = learning_rate(self.local.optimizer.lr, self.local.schedule, round.number, round.total)
        below = [p for p in network.parameters() if p.requires_grad and id(p) not in inside]
        if not below:
            raise FedstillError('FADA aligns the backbone, and all of it is frozen: set model.train = "last:2" or "all"')
        step = make_optimizer(self.local.optimizer, below, rate * self.local.backbone_rate)
        restore_optimizer(step, network.named_parameters(), memory or {})
        network.train()
        rng = round.rng("align", round.phase)
        for index in batches(len(pool), self.local.batch_size, rng, steps=self.steps(round.phase), least=2):
            f = network.backbone(network.normalise(pool.samples.x[index].to(device)))
            fooled = [w * F.softplus(-identify(f)).mean() for identify, w in zip(identifiers, weights, strict=True)]
            step.zero_grad(set_to_none=True)
            (self.options.align * torch.stack(fooled).sum()).backward()
            step.step()
        return optimizer_state(step, network.named_parameters())


def critic_loss(
    critics: Critics, f: Tensor, f_di: Tensor, f_ds: Tensor, f_target: Tensor, y: Tensor, rng: torch.Generator
) -> Tensor:
    """The loss that DI, CI and M minimise, on fixed features: ``-log DI(f_s) - log(1 - DI(f_t))``, the cross-entropy of the class
    from domain-specific features, and *minus* the bound on mutual information, which M thereby maximises."""
    domain = F.softplus(-critics.domain(f)).mean() + F.softplus(critics.domain(f_target)).mean()
    label = F.cross_entropy(critics.label(f_ds), y)
    return domain + label - mutual_information(critics.information, f_di, f_ds, rng)


def feature_loss(critics: Critics, f: Tensor, f_di: Tensor, f_ds: Tensor, options: FADAOptions, rng: torch.Generator) -> Tensor:
    """The loss that the features minimise besides cross-entropy: DI takes them for the target's, CI learns nothing from the
    domain-specific ones (cross-entropy to uniform), the branches share no information, and together they reconstruct f."""
    fool = F.softplus(critics.domain(f)).mean()  # -log(1 - DI(G(x_s)))
    confuse: Tensor = -critics.label(f_ds).log_softmax(1).mean()
    shared = mutual_information(critics.information, f_di, f_ds, rng)
    gap: Tensor = (critics.reconstructor(torch.cat([f_di, f_ds], 1)) - f).square().mean()
    return options.align * fool + options.entropy * confuse + options.information * shared + options.reconstruction * gap
