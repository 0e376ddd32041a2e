"""The local loop does what the textbook says, and its terms are their papers' formulas."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.local.terms import contrastive_loss, distil_from, proximal
from fedstill.models import build
from fedstill.training.batches import batches
from fedstill.training.fit import Batch, fit
from fedstill.training.optimizers import make_optimizer
from fedstill.training.options import Local, Optimizer, Schedule
from fedstill.training.schedules import learning_rate


def samples(n=20):
    rng = torch.Generator().manual_seed(0)
    return Samples(torch.randint(0, 256, (n, 1, 4, 4), dtype=torch.uint8, generator=rng), torch.arange(n) % 3)


def network(name="mlp", **options):
    return build(name, classes=3, shape=(1, 4, 4) if name == "mlp" else (1, 8, 8), seed=1, **options)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimiser_without_the_compiler_takes_torchs_own_steps(name):
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    more = {"momentum": 0.9} if name == "sgd" else {"betas": (0.8, 0.9)}
    ours, plain, slow = network(), network(), network()
    options = Optimizer(name=name, lr=0.1, weight_decay=0.01, **more)
    pairs = [(ours, make_optimizer(options, list(ours.parameters())))]
    pairs.append((plain, kind(plain.parameters(), lr=0.1, weight_decay=0.01, fused=True, **more)))
    pairs.append((slow, kind(slow.parameters(), lr=0.1, weight_decay=0.01, foreach=False, **more)))
    for model, optimizer in pairs:
        assert isinstance(optimizer, kind)
        for x in torch.linspace(-1, 1, 48).view(3, 1, 1, 4, 4):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), plain.parameters(), strict=True))
    torch.testing.assert_close(list(ours.parameters()), list(slow.parameters()), atol=1e-5, rtol=1e-5)


START = """
import sys
from pathlib import Path
from fedstill.run.configuration import parse
from fedstill.run.loop import run
data = {"domains": ["embedded:optdigits"], "limit": 20, "test_limit": 5}
run(parse({"rounds": 1, "data": data, "model": {"name": "mlp"}, "local": {"epochs": 1}}), Path(sys.argv[1]))
print([name for name in ("torch._dynamo", "scipy.optimize", "sklearn", "pandas") if name in sys.modules])
"""


def test_a_run_imports_neither_torchs_compiler_nor_scipy(tmp_path):
    done = subprocess.run([sys.executable, "-c", START, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


def test_fit_takes_the_same_steps_as_plain_sgd():
    data, local = samples(), Local(epochs=2, batch_size=8, optimizer=Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01))
    ours, plain = network(), network()
    fit(ours, data, local, rng=torch.Generator().manual_seed(3))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    rng = torch.Generator().manual_seed(3)
    for _ in range(2):
        for index in torch.randperm(20, generator=rng).split(8):
            optimizer.zero_grad()
            F.cross_entropy(plain((data.x[index].float() / 255 - 0.5) / 0.5), data.y[index]).backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_steps_count_batches_over_epochs():
    local = Local(steps=7, batch_size=8)
    assert fit(network(), samples(), local, rng=torch.Generator()).steps == 7
    assert [len(b) for b in batches(20, 8, torch.Generator(), drop_last=True)] == [8, 8]
    assert list(batches(0, 8, torch.Generator())) == []


def test_a_batch_of_one_is_skipped_only_where_batchnorm_needs_more():
    data = Samples(torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1]))
    local = Local(batch_size=4)
    assert fit(network("cnn-small"), data, local, rng=torch.Generator()).steps == 1
    wanted = local.model_copy(update={"steps": 5})  # what is skipped is no step
    assert fit(network("cnn-small"), data, wanted, rng=torch.Generator()).steps == 5
    with pytest.raises(FedstillError, match="1 in batches of 4 leave no batch of two"):
        fit(network("cnn-small"), data.take(slice(0, 1)), wanted, rng=torch.Generator())
    assert fit(network("cnn-small", norm="group"), data, local, rng=torch.Generator()).steps == 2


def test_the_loss_is_the_mean_over_the_last_epoch():
    data, still = samples(20), Optimizer(lr=1e-12)
    done = fit(network(), data, Local(epochs=3, batch_size=8, optimizer=still), rng=torch.Generator().manual_seed(3))
    rng, plain = torch.Generator().manual_seed(3), network()
    orders = [torch.randperm(20, generator=rng) for _ in range(3)]
    losses = [float(F.cross_entropy(plain(plain.normalise(data.x[i])), data.y[i]).detach()) for i in orders[-1].split(8)]
    assert done.loss == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_clip_bounds_the_step():
    before, after = network(), network()
    fit(after, samples(), Local(batch_size=20, clip=1e-3, optimizer=Optimizer(lr=1.0)), rng=torch.Generator())
    moved = math.sqrt(
        sum(float((a - b).detach().square().sum()) for a, b in zip(after.parameters(), before.parameters(), strict=True))
    )
    assert moved == pytest.approx(1e-3, rel=1e-3)


def test_cosine_schedule_goes_from_the_base_to_the_final_rate():
    rates = [learning_rate(0.01, Schedule(kind="cosine", final=0.001), r, 5) for r in range(1, 6)]
    assert rates == pytest.approx(
        [0.01, 0.001 + 0.009 * (1 + math.sqrt(0.5)) / 2, 0.0055, 0.001 + 0.009 * (1 - math.sqrt(0.5)) / 2, 0.001]
    )
    assert learning_rate(1.0, Schedule(kind="exponential", factor=0.5), 3, 5) == 0.25


def test_optimisers_are_torch_s_own():
    net = network()
    assert isinstance(make_optimizer(Optimizer(name="adam"), list(net.parameters())), torch.optim.Adam)
    assert isinstance(make_optimizer(Optimizer(name="adamw"), list(net.parameters())), torch.optim.AdamW)


def test_proximal_term_adds_mu_times_the_distance_to_the_gradient():
    net = network()
    anchor = {name: p.detach() - 0.5 for name, p in net.named_parameters()}
    term = proximal(anchor, mu=0.3)(Batch(net, *[torch.empty(0)] * 4, 0, torch.Generator()))
    count = sum(p.numel() for p in net.parameters())
    assert float(term.detach()) == pytest.approx(0.3 / 2 * 0.25 * count, rel=1e-5)  # mu/2 ||w - w_global||^2
    term.backward()
    for p in net.parameters():
        assert torch.allclose(p.grad, torch.full_like(p, 0.3 * 0.5))


def test_contrastive_loss_at_known_values():
    z = torch.tensor([[1.0, 0.0]])
    other = torch.tensor([[0.0, 1.0]])
    # equal similarities: log 2, whatever the temperature; three candidates: log 3
    assert float(contrastive_loss(z, z, [z], 0.5)) == pytest.approx(math.log(2), rel=1e-6)
    assert float(contrastive_loss(z, z, [z, z], 0.1)) == pytest.approx(math.log(3), rel=1e-6)
    # similarity 1 to the global model and 0 to the previous one at t = .5: -log(e^2 / (e^2 + 1))
    assert float(contrastive_loss(z, z, [other], 0.5)) == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-5)
    assert float(contrastive_loss(z, z, [], 0.5)) == 0


def test_distillation_from_the_global_model_is_kl_teacher_to_local():
    teacher, local = network().double(), build("mlp", classes=3, shape=(1, 4, 4), seed=2).double()
    x = torch.randn(5, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = local(x)
    got = distil_from(teacher, weight=2.0, temperature=4.0)(Batch(local, x, torch.zeros(5), x, logits, 0, torch.Generator()))
    p, q = (teacher(x) / 4).softmax(1), (logits / 4).softmax(1)
    assert float(got.detach()) == pytest.approx(2 * 16 * float((p * (p / q).log()).sum(1).mean().detach()), rel=1e-4)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_backbone_has_a_rate_of_its_own(name: str) -> None:
    """After one step, what lies below the head has moved a tenth of the way, the head and a bottleneck all of it."""
    moved = {}
    for factor in (1.0, 0.1):
        net = network(bottleneck=5)
        before = {key: value.clone() for key, value in net.named_parameters()}
        local = Local(steps=1, backbone_rate=factor, optimizer=Optimizer(name=name, lr=0.1))
        fit(net, samples(), local, rng=torch.Generator().manual_seed(0))
        moved[factor] = {key: value.detach() - before[key] for key, value in net.named_parameters()}
    for key, whole in moved[1.0].items():
        share = 1.0 if key.startswith(("head", "neck")) else 0.1
        assert torch.allclose(moved[0.1][key], share * whole, atol=1e-6), key
