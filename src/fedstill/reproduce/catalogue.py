"""Every study: its description for ``--list``, and the place of its function.

The descriptions are here and not beside the functions, because a function is imported only when the study runs: it imports torch,
which a list does not need. Describe your own studies with :func:`study`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fedstill.core.registry import Registry, resolve
from fedstill.reproduce.grids import grids
from fedstill.reproduce.plan import Cell, Plan

__all__ = ["STUDIES", "Later", "Study", "Tiny", "studies", "study"]

Unit = Literal["accuracy", "rounds", "number"]
Run = TypeVar("Run", bound=Callable[[Plan], Sequence[Cell]])


@dataclass(frozen=True)
class Tiny:
    """How a larger protocol becomes a tiny one: settings of every run, and the rows and columns that are left."""

    sets: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    scale: str = "small"  # the protocol that these change


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper."""

    name: str
    title: str
    minutes: Mapping[str, float]  # scale -> expected minutes of one seed on two cores, or on one GPU (paper)
    run: Callable[[Plan], Sequence[Cell]] = field(repr=False)
    unit: Unit = "accuracy"
    note: str = ""  # what differs from the paper at the small scale
    tiny: Tiny | None = None  # unless the study's function knows the tiny scale


STUDIES: Registry[Study] = Registry("study", group="fedstill.studies")


def study(
    name: str,
    title: str,
    *,
    small: float,
    paper: float,
    tiny: float = 0,
    reduced: float = 0,
    unit: Unit = "accuracy",
    note: str = "",
    smaller: Tiny | None = None,
) -> Callable[[Run], Run]:
    """Register the decorated function as the study ``name``; ``tiny``, ``reduced``, ``small`` and ``paper`` are the expected
    minutes, 0 for a scale that it does not have."""
    minutes = {"tiny": tiny, "reduced": reduced, "small": small, "paper": paper}

    def of(run: Any) -> Study:
        return Study(name, title, {scale: m for scale, m in minutes.items() if m}, run, unit, note, smaller)

    return STUDIES.register(name, of)


def studies() -> dict[str, Study]:
    """Every study by its name.

    >>> studies()["fedd3a-table2"].minutes
    {'tiny': 1, 'small': 1, 'paper': 5}
    """
    return dict(sorted(STUDIES.items()))


@dataclass(frozen=True)
class Later:
    """A study's function by its place, ``module:function`` in this package, imported when it is called."""

    place: str

    def function(self) -> Callable[[Plan], Sequence[Cell]]:
        """The function itself."""
        found: Callable[[Plan], Sequence[Cell]] = resolve(f"fedstill.reproduce.{self.place}", "study")
        return found

    def __call__(self, plan: Plan) -> Sequence[Cell]:
        return self.function()(plan)


DAFKD = (
    "Ours is the mean of the last five rounds. Small scale: cnn-small on 16x16 images, 500 training images per client, 20 "
    "rounds of E = 20 epochs, 400 distillation steps per round, 2000 test samples. Reduced scale: cnn-small on 16x16 images, "
    "E = 20 steps, 100 distillation steps on a pool of 640 samples. Client count and participation are the paper's at these "
    "scales. Tiny scale: 600 digits, 6 clients, 12 rounds. All rows average clients with equal weights (Eq. 6)."
)
FEW = ("rounds=12", "data.limit=600", "data.test_limit=300", "clients.per_domain=6", "engine.threads=1")
DAFKD_SCALES: Any = {
    "tiny": 3,
    "reduced": 240,
    "smaller": Tiny(FEW, columns=("mnist 0.1", "mnist 0.85", "mnist 0.9"), scale="reduced"),
}
study("dafkd-table1", "DaFKD, Table 1: accuracy of six systems", small=360, paper=6000, note=DAFKD, **DAFKD_SCALES)(
    Later("dafkd:accuracy")
)
study(
    "dafkd-table2",
    "DaFKD, Table 2: rounds to an accuracy (alpha = 0.1)",
    small=120,
    paper=2000,
    unit="rounds",
    note=DAFKD,
    **DAFKD_SCALES,
)(Later("dafkd:rounds_to_targets"))
study("dafkd-table3", "DaFKD, Table 3a: without sharing, without correlation", small=240, paper=4000, note=DAFKD, **DAFKD_SCALES)(
    Later("dafkd:ablations")
)
study(
    "dafkd-table3b",
    "DaFKD, Table 3b: the ablations' rounds to an accuracy",
    small=120,
    paper=2000,
    unit="rounds",
    note=DAFKD,
    **DAFKD_SCALES,
)(Later("dafkd:ablations_rounds"))
study(
    "dafkd-game",
    "DaFKD: the game on pooled digits, and the quality of its generator",
    small=4,
    paper=4,
    tiny=4,
    unit="number",
    note="Not in the paper. One client holds 5,000 digits and plays 600 steps of 32; the judge learned from other digits. "
    "within: variation of a pixel within a class; classes: effective number of classes that the judge predicts; label: share "
    "predicted as its intended class; FID: Frechet distance of the judge's features to those of real digits.",
)(Later("dafkd_game:game"))

study(
    "fedd3a-table1",
    "FedD3A, Table 1: weighting strategies after one round",
    small=15,
    paper=24 * 60,
    tiny=1,
    smaller=Tiny(("data.limit=300", "data.test_limit=200", "data.image_size=16", "local.epochs=4", "engine.threads=1")),
    note="At the small scale the domains are digits (with --data MNIST, USPS and SVHN and a pool of MNIST-M, otherwise embedded "
    "digits), the network is cnn-small and a client trains for 10 epochs. The paper has DomainNet, a pre-trained ResNet-50 and "
    "50 epochs, so only the order of the rows can be compared. The full scale starts from scratch unless "
    "--set model.weights=FILE gives a pre-trained backbone.",
)(Later("fedd3a:table1"))
study(
    "fedd3a-table2",
    "FedD3A, Table 2: test images classified by projection matrices alone",
    small=1,
    paper=5,
    tiny=1,
    smaller=Tiny(("data.limit=4000", "data.test_limit=1000")),
    note="Each client holds one class; the backbone is an untrained 3-layer MLP. MNIST only: the other rows need ImageNet "
    "weights.",
)(Later("fedd3a:table2"))

study(
    "feddf-figure1",
    "FedDF, Figure 1: how far the fused models are from the ensemble",
    small=0.2,
    paper=0.2,
    tiny=0.2,
    unit="number",
    note="Mean over the plane of KL(ensemble || model), and the share of the plane where both predict the same class; the five "
    "panels are in figure1.png. The paper's figure has no numbers.",
)(Later("feddf_toy:toy_figure"))
study(
    "feddf-table1",
    "FedDF, Table 1: rounds to the target accuracy",
    tiny=2,
    small=65,
    paper=60 * 24 * 14,
    unit="rounds",
    note="At the small scale: 8,000 images instead of 45,000, 10 rounds, a quarter of the row's local epochs, 200 distillation "
    "steps, lower targets. At the tiny scale: 600 images at 16 pixels, 6 clients, cnn-small, 4 rounds. The paper's figures are "
    "for the full protocol.",
)(Later("feddf:rounds_to_target"))
study(
    "feddf-table3",
    "FedDF, Table 3: VGG-9 without BN, 20 clients, C = 0.4, alpha = 1, accuracy at a round",
    small=45,
    paper=6000,
    tiny=3,
    note="A round of FedMA is a whole model: nine layers, nine exchanges. At the small scale: 2,000 MNIST digits at 12 pixels "
    "instead of CIFAR-10, letters instead of CIFAR-100 on the server, 10 clients, 8 local epochs (with momentum) instead of 40, "
    "20 rounds, 60 distillation steps, FedMA with 1 epoch and 1 sweep per layer. Only the order of the systems can be compared "
    "with the paper's, not the figures.",
)(Later("feddf_table3:feddf_table3"))
KDCL = (
    "The columns of DomainNet have only the paper's figures: another data set with pretrained ResNets, the best of five runs. "
    "Ours: every system with the same network and local training, the last round's accuracy on the target's test set, mean over "
    "seeds. Small scale: 6,000 images a domain, 20 rounds, rate and decay of KD3A's authors, cnn-small. Reduced scale: 1,500 "
    "images, 8 rounds of two epochs."
)
KDCL_SCALES: Any = {
    "tiny": 3,
    "smaller": Tiny(
        ("data.limit=300", "data.test_limit=200", "data.image_size=16"),
        only=("mnist_m", "usps"),
        scale="reduced",
    ),
}
study("kdcl-table1", "KDCL, Table 1: accuracy on the target domain", small=80, reduced=25, paper=1800, note=KDCL, **KDCL_SCALES)(
    Later("kdcl:table1")
)
study(
    "kdcl-table2",
    "KDCL, Table 2: rounds to KD3A's final accuracy",
    small=30,
    reduced=10,
    paper=900,
    unit="rounds",
    note=KDCL,
    **KDCL_SCALES,
)(Later("kdcl:table2"))
study(
    "kdcl-poison",
    "A source with 30% shifted labels, or an irrelevant one: accuracy, and that source's weight",
    small=20,
    reduced=6,
    paper=400,
    unit="number",
    **KDCL_SCALES,
    note="Target mnist_m; sources mnist (poisoned: 30% of its labels shifted by one), usps, svhn; the irrelevant source is "
    "Fashion-MNIST with its classes taken for digits. Not in the paper.",
)(Later("kdcl:poison"))

study(
    "poisoning",
    "Accuracy with malicious clients (10 clients, embedded digits, tested on noisy digits)",
    small=8,
    paper=60,
    tiny=2,
    smaller=Tiny(
        ("rounds=3", "data.limit=400", "engine.threads=1"), columns=("none", "flipped labels, 40%", "mirrored updates, 40%")
    ),
    note="Cronus has no global model: its figure is the mean over the honest clients' own models. Mirrored and noise updates are "
    "scaled by 3; Cronus' malicious clients mirror their logits or add noise to them. FedDF, FedDF-median and FedRAD distil "
    "alike (200 steps of Adam); FedRAD also averages the student's weights.",
)(Later("poisoning:poisoning"))
study(
    "privacy",
    "Accuracy against epsilon (10 clients, MNIST, alpha 1): DP-SGD with FedAvg, FedDF and FedD3A; private votes",
    small=15,
    paper=240,
    tiny=4,
    note="Epsilon is that of each sample, at delta 1e-5; for private votes, that of each client as a teacher, against all but "
    "the server. FedD3A's projections have noise too, for a fifth of the budget.",
)(Later("privacy:privacy"))
study(
    "never-hurts",
    "Does distillation cost accuracy? FedAvg, the papers' own forms, and with judge and line",
    small=130,
    paper=130,
    tiny=2,
    smaller=Tiny(("rounds=2", "data.limit=300", "data.test_limit=200"), columns=("digits svhn", "mnist alpha 0.1")),
    note="The column's last word is the pool. Judged rows deliver and carry on points between average and student, which clients "
    "choose on held-out data, and they vary the pool. DaFKD and FedFTG generate images, so they have no pool and cannot use a "
    "frozen network's features. docs/results/never-hurts.md has three seeds.",
)(Later("never_hurts:never_hurts"))
study(
    "never-hurts-ablations",
    "What carries more of the ensemble over to the student: FedDF and FedD3A with judge and line, one change at a time",
    small=130,
    paper=130,
    tiny=2,
    smaller=Tiny(("rounds=2", "data.limit=300", "data.test_limit=200"), columns=("digits svhn",), only=("feddf",)),
    note="The columns of never-hurts with digits and photographs. --only takes systems or whole rows, without their commas.",
)(Later("never_hurts:ablations"))
study(
    "virtual",
    "One round and ten rounds on a frozen pretrained network: virtual features, students on a pool, all data pooled",
    small=60,
    paper=60,
    tiny=1,
    smaller=Tiny(("rounds=2", "data.limit=300", "data.test_limit=200"), columns=("digits svhn", "mnist alpha 0.1")),
    note="PACS at 160 pixels, EfficientNet-Lite0 with a head of 256 units. The column's last word is the domain that no site "
    "has, which is the pool of systems that need one, or the Dirichlet parameter with three sites per domain. "
    "docs/results/virtual.md has three seeds.",
)(Later("virtual:virtual"))
study(
    "photographs",
    "PACS and news on pretrained networks: FedD3A's and FedDF's comparisons, adaptation, one-shot fusion, text",
    small=75,
    paper=75,
    tiny=2,
    smaller=Tiny(("local.epochs=2", "data.limit=200", "data.test_limit=100"), columns=("one round photo", "target photo")),
    note="EfficientNet-Lite0 on 500 images of each domain of PACS at 160 pixels and MiniLM on AG News and SST-2; the trunk is "
    "frozen except in the columns last:2. The column's last word is the pool, the target or the Dirichlet parameter. "
    "docs/results/photographs.md has the results.",
)(Later("photographs:photographs"))

for _name, _title, _place, _tiny in (
    ("dafkd-figure3", "DaFKD, Figure 3: accuracy over heterogeneity", "heterogeneity", ("mnist",)),
    ("dafkd-figure4", "DaFKD, Figure 4: learning curves, alpha = 0.1", "curves", ("mnist 0.1",)),
    ("dafkd-figure5", "DaFKD, Figure 5: share of active clients", "active_ratio", ("mnist r=0.4", "mnist r=1")),
    ("dafkd-figure6", "DaFKD, Figure 6: local steps, batch size, noise dimension", "sensitivity", ()),
    ("dafkd-figure7", "DaFKD, Figure 7: a generator of features instead of images", "features", ("mnist 0.1",)),
):
    study(
        _name,
        _title,
        small=240,
        paper=4000,
        note=DAFKD,
        **{**DAFKD_SCALES, "smaller": Tiny(FEW, columns=_tiny, scale="reduced")},
    )(Later(f"dafkd_figures:{_place}"))
study("kdcl-figure4", "KDCL, Figure 4: accuracy round by round", small=80, reduced=25, paper=1800, note=KDCL, **KDCL_SCALES)(
    Later("kdcl:figure4")
)
study(
    "fedd3a-figure7",
    "FedD3A, Figure 7: features of the global model by domain and class",
    small=15,
    paper=900,
    tiny=1,
    note="The setting of Figure 3 with the server's domain mnist_m; t-SNE of four classes of the first seed's test images.",
)(Later("fedd3a:figure7"))
for _name, _grid in grids().items():
    _told = _grid.told
    study(_name, _told["title"], unit=_told.get("unit", "accuracy"), note=_told.get("note", ""), **_told["minutes"])(_grid)
