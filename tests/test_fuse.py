"""``fedstill.fuse`` from Python: plain modules, bundles, differing classes, and the folder it leaves."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedstill
from fedstill.bundles.card import table
from fedstill.bundles.folder import read_fused
from fedstill.bundles.fuse import FuseOptions, fuse
from fedstill.bundles.fuse.options import FuseKeywords
from fedstill.bundles.fuse.student import AVERAGE, _chosen
from fedstill.bundles.fuse.teachers import as_network
from fedstill.bundles.pack import pack
from fedstill.core.errors import FedstillError
from fedstill.core.message import clone
from fedstill.core.options import descriptions
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import Table
from fedstill.models.predict import accuracy
from fedstill.report.runs import load_run

from .bundles.sites import SHAPE, blob_bundle, blobs, write_folder

STEPS = {"steps": 150, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.01}}


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


# -- plain modules -----------------------------------------------------------------------------------------------------------


def test_the_student_learns_the_mean_of_the_teachers() -> None:
    teachers, x = [linear(1), linear(2)], torch.randn(128, 4)
    student = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    fused = fuse(teachers, x, student, distillation=STEPS)
    assert fused.student is student
    wanted = torch.stack([t(x).softmax(1) for t in teachers]).mean(0)
    assert float((student(x).softmax(1) - wanted).abs().mean().detach()) < 0.03


def test_teachers_are_left_as_they_are() -> None:
    teachers = [linear(1).train(), linear(2).eval()]
    before = [clone(t.state_dict()) for t in teachers]
    labelled = Samples(torch.randn(30, 4), torch.randint(0, 3, (30,)))
    fuse(teachers, torch.randn(64, 4), linear(3), distillation=STEPS, validation=labelled)
    assert [t.training for t in teachers] == [True, False]
    for teacher, state in zip(teachers, before, strict=True):
        assert all(torch.equal(teacher.state_dict()[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("kind", ["tensor", "samples", "dataset", "loader", "dictionaries"])
def test_any_kind_of_unlabelled_data_gives_the_same_student(kind: str) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    labelled = TensorDataset(x, torch.zeros(64))
    given = {
        "tensor": x,
        "samples": Samples(x, torch.zeros(64, dtype=torch.long)),
        "dataset": labelled,
        "loader": DataLoader(labelled, batch_size=10),
        "dictionaries": DataLoader([{"label": 0, "inputs": row} for row in x], batch_size=16),
    }[kind]
    student = fuse([linear(1)], given, linear(3), distillation={"steps": 5}).student
    other = fuse([linear(1)], x, linear(3), distillation={"steps": 5}).student
    assert torch.equal(student.weight, other.weight)  # type: ignore[arg-type]


def test_functions_bring_teachers_when_their_turn_comes() -> None:
    alive: list[int] = []

    def bring(seed: int):
        def load() -> nn.Module:
            alive.append(seed)
            return linear(seed)

        return load

    fused = fuse({"a": bring(1), "b": bring(2)}, torch.randn(32, 4), linear(3), distillation={"steps": 2})
    assert list(fused.teachers) == ["a", "b"]
    assert alive[-2:] == [1, 2] or set(alive) == {1, 2}


def test_the_same_seed_gives_the_same_student() -> None:
    x = torch.randn(64, 4)
    one, other = (fuse([linear(1)], x, linear(3), distillation=STEPS, seed=4).student for _ in range(2))
    assert torch.equal(one.weight, other.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("middle", "start"),
    [
        (lambda one, two: (one + two) / 2, "average"),  # it knows both domains, though the first agrees better here
        (lambda one, two: -(one + two), "one"),  # the teachers have nothing in common that an average could keep
    ],
)
def test_the_start_is_the_average_unless_the_teachers_agree_better(middle: Callable[..., Tensor], start: str) -> None:
    """The pool is of the first teacher's domain, so that it alone is the ensemble."""
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    one, two, own = (
        {key: size * t for key, t in linear(seed).state_dict().items()} for seed, size in ((1, 1.0), (2, 0.3), (3, 1.0))
    )
    states = {"one": one, "two": two, "own weights": own, AVERAGE: {key: middle(one[key], two[key]) for key in one}}
    table = Table(torch.nn.functional.linear(x, one["weight"], one["bias"]).softmax(1), torch.ones(256, 1))
    pool = Samples(x, torch.zeros(256, dtype=torch.long))
    network = as_network(linear(4), (4,), "the student", FuseOptions())
    places = dict(zip(one, network.state_dict(), strict=True))
    candidates = {name: lambda state=state: {places[key]: state[key] for key in state} for name, state in states.items()}
    assert _chosen(network, candidates, ["one", "two"], pool, table) == start


def test_auto_starts_from_one_of_the_teachers_or_their_average() -> None:
    x, teachers = torch.randn(64, 4), [linear(1), linear(2)]
    assert fuse(teachers, x, linear(3), distillation={"steps": 1}).start == "average"
    assert fuse(teachers, x, linear(3), distillation={"steps": 1}, start="own").start == "own weights"


def test_the_result_lies_between_the_average_and_the_student() -> None:
    x, teachers = torch.randn(128, 4), [linear(1), linear(2)]
    with torch.no_grad():
        teachers[0].weight.mul_(-6)  # type: ignore[operator]  # the mean of weights is not the mean of predictions
    weigh = lambda **given: fuse(teachers, x, linear(3), start="average", distillation=STEPS, seed=1, **given)
    average, student, half = (weigh(line=t).student for t in (0.0, 1.0, 0.5))
    assert torch.allclose(average.weight, (teachers[0].weight + teachers[1].weight) / 2)
    assert not torch.allclose(average.weight, student.weight, atol=1e-3)
    assert torch.allclose(half.weight, (average.weight + student.weight) / 2, atol=1e-6)
    assert torch.equal(weigh().student.weight, half.weight)  # nobody can judge
    assert weigh().settings["line"] == 0.5
    for end, model in ((0.0, average), (1.0, student)):  # labels by an end: that end is right
        judges = Samples(x, model(x).argmax(1))
        found = weigh(validation=judges, line="auto")
        assert found.settings["line"] == end
        kinds = [row.kind for row in found.figures]
        assert kinds[kinds.index("start") :] == (["start", "student"] if end else ["start", "distilled", "student"])
    alone = fuse(teachers, x, linear(3), start="own", distillation=STEPS, seed=1, line=0.5)
    assert alone.settings["line"] == 1.0  # there is no line from the student's own weights


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"line": 1.5}, "line = 1.5"),
        ({"norm": "layer"}, "norm = \"layer\": should be 'batch', 'group' or 'none'"),
        ({"student": nn.Linear(4, 2)}, "the student has 2 outputs, and the teachers know 3 classes"),
        ({"student": nn.Linear(5, 3)}, "the student does not take inputs of shape"),
        ({"student": None}, "name the student"),
        ({"teachers": []}, "nothing to fuse"),
        ({"teachers": [nn.Linear(7, 3)]}, "teacher 1 does not take inputs of shape"),
        ({"teachers": [3]}, "teacher 1 is a int"),
        ({"unlabelled": torch.empty(0, 4)}, "no unlabelled samples"),
        ({"weighting": "unifrom"}, "did you mean 'uniform'"),
        ({"weighting": "projection"}, "needs a 'projection' report"),
        ({"distillation": {"stepps": 3}}, "did you mean 'distillation.steps'"),
        ({"distillation": {"fresh": True}}, "fuse computes the teachers' table once"),
        ({"ensemble": "logit"}, "did you mean 'logits'"),
        ({"wieghting": "vote"}, "unknown key 'wieghting'; did you mean 'weighting'"),
        ({"limit": 0}, "limit = 0"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"start": "nobody"}, "no teacher has this name"),
        ({"classes": ["a", "b"]}, "3 outputs, but 2 classes"),
        ({"validation": Samples(torch.randn(3, 4))}, "need labels"),
    ],
)
def test_mistakes_are_one_line(change: dict, says: str) -> None:
    call = {"teachers": [linear(1)], "unlabelled": torch.randn(8, 4), "student": linear(2), **change}
    with pytest.raises(FedstillError, match=says) as caught:
        fuse(**call)
    assert "\n" not in str(caught.value)


def test_an_option_of_none_is_as_good_as_none() -> None:
    x, nothing = torch.randn(64, 4), {"weighting_options": None, "student_options": None, "classes": None, "mean": None}
    one = fuse([linear(1)], x, linear(3), distillation={"steps": 5})
    other = fuse([linear(1)], x, linear(3), distillation={"steps": 5}, **nothing)
    assert torch.equal(one.student.weight, other.student.weight)  # type: ignore[arg-type]
    assert one.settings == other.settings


@pytest.mark.parametrize(("given", "norm"), [({}, "train"), ({"student_norm": "frozen"}, "frozen")])
def test_an_untrained_student_learns_its_statistics_unless_told(given: dict, norm: str) -> None:
    student = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    fused = fuse([linear(1)], torch.randn(64, 4) + 3, student, distillation={"steps": 5, **given})
    assert fused.settings["distillation"]["student_norm"] == norm
    assert bool(student[1].running_mean.any()) == (norm == "train")  # type: ignore[union-attr,operator]


def test_every_option_can_be_written_and_is_explained() -> None:
    meanings = descriptions(FuseOptions)
    assert set(FuseKeywords.__annotations__) == set(FuseOptions.model_fields)
    for name in FuseOptions.model_fields:
        assert meanings[name], name
        assert f"    {name}" in (fuse.__doc__ or "")


# -- bundles -----------------------------------------------------------------------------------------------------------------


def test_classes_are_aligned_by_name_and_teachers_silent_on_others(tmp_path: Path) -> None:
    a = blob_bundle(tmp_path, "a", [0, 1, 2, 3], hidden=[32])
    b = blob_bundle(tmp_path, "b", [5, 3, 4], "cnn-small", seed=1)  # another order, another architecture, one class in common
    test = blobs(range(6), 300, 9)
    fused = fuse([a, b], blobs(range(6), 400, 8), "cnn-small", validation=test, distillation=STEPS)
    assert fused.classes == ("row0", "row1", "row2", "row3", "row5", "row4")
    # labels of the validation samples count along the union
    by_name = [fused.classes.index(f"row{y}") for y in test.y.tolist()]  # type: ignore[union-attr]
    test = Samples(test.x, torch.tensor(by_name))
    alone = max(accuracy_of(bundle, test, fused.classes) for bundle in (a, b))
    assert accuracy(fused.network, test) > alone + 0.1


def accuracy_of(bundle, test: Samples, classes: tuple[str, ...]) -> float:
    network = bundle.network()
    said = network(network.normalise(test.x)).argmax(1)
    places = torch.tensor([classes.index(name) for name in bundle.about.classes])
    return float((places[said] == test.y).double().mean())


def test_the_folder_is_written_read_and_continued(tmp_path: Path) -> None:
    bundles = [blob_bundle(tmp_path, name, range(3), seed=seed, hidden=[16]) for seed, name in enumerate("ab")]
    test = blobs(range(3), 100, 9)
    fused = fuse(bundles, blobs(range(3), 200, 8), validation={"rows": test}, distillation=STEPS)
    out = fused.save(tmp_path / "fused")
    again = read_fused(out)
    x = test.x[:5]
    network = again.network()
    assert torch.allclose(network(network.normalise(x)), fused.network(fused.network.normalise(x)))
    card = (out / "MODEL_CARD.md").read_text()
    facts = json.loads((out / "fused.json").read_text())
    for name in ("a", "b", "ensemble", "student", "average of a, b"):
        assert f"| {name}" in card
    assert [t["digest"] for t in facts["teachers"]] == [bundle.digest for bundle in bundles]
    assert sum(t["weight"] for t in facts["teachers"]) == pytest.approx(1)
    assert table(fused)[0] == ["", "rows"]
    # with figures it is also a run of one round, for the report page
    run = load_run(out)
    assert run.problems == []
    assert run.summary["command"].startswith("fedstill fuse a.fed b.fed")
    assert run.final_accuracy == fused.figures[-1].mean
    assert set(run.history[0]["weights_by_domain"]["rows"]) == {"a", "b"}
    # another model in its place leaves nothing of the first
    fuse(bundles, blobs(range(3), 20, 8), distillation={"steps": 1}).save(tmp_path / "other")
    fuse(bundles, blobs(range(3), 20, 8), validation={"rows": test}, distillation={"steps": 1}).save(tmp_path / "other")
    assert (tmp_path / "other" / "history.jsonl").exists()
    fuse(bundles, blobs(range(3), 20, 8), distillation={"steps": 1}).save(tmp_path / "other")
    assert not (tmp_path / "other" / "history.jsonl").exists()
    # a site goes on from it
    site = write_folder(tmp_path / "site", blobs(range(3), 60, 3), ["row0", "row1", "row2"])
    packed = pack(tmp_path / "next.fed", base=out, data=site, epochs=1)
    assert packed.bundle.about.based_on == facts["digest"]
    assert packed.accuracy is not None
    assert packed.accuracy > 0.9
    assert packed.bundle.about.subspace is not None
    assert packed.bundle.about.subspace.reference == "fused"
    # two such bundles are fused with the fused model as the reference
    other = pack(tmp_path / "other.fed", base=out, data=site, epochs=1, seed=1)
    second = fuse([packed.bundle, other.bundle], blobs(range(3), 50, 8), weighting="projection", reference=str(out))
    assert second.start in ("average", "next", "other")
    with pytest.raises(FedstillError, match="give the reference that all sites used"):
        fuse([packed.bundle, other.bundle], blobs(range(3), 50, 8), weighting="projection", reference="cnn-small")


def test_damaged_folders_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    bundle = blob_bundle(tmp_path, "a", range(3), hidden=[16])
    fused = fuse([bundle], blobs(range(3), 50, 8), distillation={"steps": 2})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FedstillError, match="holds other files"):
        fused.save(tmp_path / "mine")
    out = fused.save(tmp_path / "fused")
    weights = bytearray((out / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (out / "model.safetensors").write_bytes(bytes(weights))
    with pytest.raises(FedstillError, match="digest"):
        read_fused(out)
    with pytest.raises(FedstillError, match="not the folder of a fused model"):
        read_fused(tmp_path / "mine")


def test_onnx_says_what_the_student_says(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    bundle = blob_bundle(tmp_path, "a", range(3), hidden=[16])
    out = fuse([bundle], blobs(range(3), 50, 8), distillation={"steps": 2}).save(tmp_path / "fused", onnx=True)
    network = read_fused(out).network()
    x = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8)  # raw images: the normalisation is inside
    said = ReferenceEvaluator(onnx.load(out / "model.onnx")).run(None, {"images": x.numpy()})[0]
    assert torch.allclose(torch.from_numpy(said), network(network.normalise(x)), atol=1e-4)


def test_a_float_pool_needs_one_normalisation(tmp_path: Path) -> None:
    a = blob_bundle(tmp_path, "a", range(3), hidden=[16])
    about = a.about.model_copy(update={"name": "b", "mean": 0.1})
    from fedstill.bundles.bundle import write_bundle

    b = write_bundle(tmp_path / "b.fed", about, model=a.state)
    with pytest.raises(FedstillError, match="uint8 images"):
        fuse([a, b], torch.randn(10, *SHAPE))


# -- the public names --------------------------------------------------------------------------------------------------------


def test_public_names_are_brought_when_asked_for() -> None:
    code = "import sys, fedstill; assert 'torch' not in sys.modules; assert callable(fedstill.run)"
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in fedstill.__all__:
        assert getattr(fedstill, name) is not None
    assert set(fedstill.__all__) <= set(dir(fedstill))
    with pytest.raises(AttributeError):
        _ = fedstill.nothing


def test_run_is_a_package_and_a_function(tmp_path: Path, tiny) -> None:
    from fedstill.config.tables import Config

    assert fedstill.config.tables.Config is Config
    result = fedstill.run(tiny(rounds=1), tmp_path)
    assert len(result.history) == 1
    with pytest.raises(TypeError):
        fedstill.run(tiny(), tmp_path, settings=["rounds=1"])


def test_teachers_do_not_pile_up_in_memory() -> None:
    """However many there are, one is there when the next is brought; benchmarks/fuse_memory.py measures it."""
    living: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    most = 0

    def bring() -> nn.Module:
        nonlocal most
        module = linear(1)
        living.add(module)
        gc.collect()
        most = max(most, len(living))
        return module

    gc.freeze()  # what other tests left is not searched at every teacher
    try:
        fuse([bring] * 8, torch.randn(16, 4), linear(3), distillation={"steps": 1})
    finally:
        gc.unfreeze()
    assert most <= 3
