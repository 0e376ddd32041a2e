"""Bundles: what is written is read, what was changed is refused, and nothing in a file is executed."""

from __future__ import annotations

import ast
import json
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import fedstill.bundles
from fedstill.bundles.bundle import About, Architecture, Bundle, digest, read_bundle, write_bundle
from fedstill.bundles.pack import pack
from fedstill.bundles.programs import program_kind
from fedstill.bundles.words import in_words
from fedstill.core.errors import FedstillError
from fedstill.models import build

CLASSES = ["cat", "dog", "owl"]
SHAPE = [1, 8, 8]


def mlp() -> nn.Module:
    return build("mlp", classes=3, shape=SHAPE, hidden=[4], seed=0)


def about(**changes) -> About:
    architecture = Architecture(name="mlp", options={"hidden": [4]})
    return About(**{"name": "a", "model": architecture, "classes": CLASSES, "shape": SHAPE, **changes})


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_bundle(tmp_path / "a.fed", about(samples=12, label_counts=[4, 4, 4]), model=mlp().state_dict())


def test_what_is_written_is_read(bundle: Bundle) -> None:
    again = read_bundle(bundle.path)
    assert again == bundle
    x = torch.randn(5, *SHAPE)
    assert torch.equal(again.network()(x), mlp().eval()(x))
    assert again.reply().samples == 12


def test_a_network_takes_images_of_other_sizes_and_colours(bundle: Bundle) -> None:
    network = bundle.network()
    colour = torch.randint(0, 256, (2, 3, 17, 20), dtype=torch.uint8)
    assert network.normalise(colour).shape == (2, 1, 8, 8)


def test_a_bundle_cut_short_is_refused(bundle: Bundle) -> None:
    whole = bundle.path.read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        bundle.path.write_bytes(whole[:length])
        with pytest.raises(FedstillError, match="truncated"):
            read_bundle(bundle.path)


@pytest.mark.parametrize("where", [0.3, 0.6, 0.99])
def test_one_changed_byte_is_noticed(bundle: Bundle, where: float) -> None:
    data = bytearray(bundle.path.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    place = header + int(where * (len(data) - header - 1))
    data[place] ^= 1
    bundle.path.write_bytes(bytes(data))
    with pytest.raises(FedstillError, match="changed or damaged"):
        read_bundle(bundle.path)


def test_a_changed_description_is_noticed(bundle: Bundle) -> None:
    data = bundle.path.read_bytes().replace(b"cat", b"cow", 1)
    bundle.path.write_bytes(data)
    with pytest.raises(FedstillError, match="changed or damaged"):
        read_bundle(bundle.path)


def forged(path: Path, tree: dict, tensors: dict | None = None) -> Path:
    """A bundle with a right digest and a description of one's own."""
    said = json.dumps(tree)
    tensors = tensors or {f"model/{name}": tensor for name, tensor in mlp().state_dict().items()}
    values = json.dumps({"bundle": said, "digest": digest(tensors, said)})
    path.write_bytes(safetensors.torch.save(tensors, {"values": values}))
    return path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "has format 2"),
        ({"shape": [0, 8, 8]}, "shape"),
        ({"classes": ["a", "a", "b"]}, "named twice"),
        ({"std": 0.0}, "above zero"),
        ({"std": -1.0}, "above zero"),
        ({"std": float("inf")}, "finite"),
        ({"std": [0.5, float("nan")]}, "finite"),
        ({"mean": float("nan")}, "finite"),
        ({"mean": [0.5, float("-inf")]}, "finite"),
        ({"surprise": 1}, "surprise"),
        ({"label_counts": [1]}, "label counts"),
        ({"program": "torchscript"}, "either"),
    ],
)
def test_a_forged_description_is_refused(tmp_path: Path, changes: dict, says: str) -> None:
    tree = {**about().model_dump(mode="json", exclude_none=True), **changes}
    with pytest.raises(FedstillError, match=says) as caught:
        read_bundle(forged(tmp_path / "f.fed", tree))
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_the_architecture_are_refused(tmp_path: Path) -> None:
    tree = about(classes=["a", "b"]).model_dump(mode="json", exclude_none=True)
    with pytest.raises(FedstillError, match="do not fit 'mlp'"):
        read_bundle(forged(tmp_path / "f.fed", tree)).network()
    tree = about(model=Architecture(name="mlp", options={"hidden": [4, 4]})).model_dump(mode="json", exclude_none=True)
    with pytest.raises(FedstillError, match="needs tensor"):
        read_bundle(forged(tmp_path / "g.fed", tree)).network()


def test_not_a_number_is_refused(tmp_path: Path) -> None:
    state = mlp().state_dict()
    next(iter(state.values()))[0] = torch.nan
    with pytest.raises(FedstillError, match="not finite"):
        write_bundle(tmp_path / "a.fed", about(), model=state)
    assert not (tmp_path / "a.fed").exists()
    tree = about().model_dump(mode="json", exclude_none=True)
    with pytest.raises(FedstillError, match="not finite"):
        read_bundle(forged(tmp_path / "f.fed", tree, {f"model/{name}": tensor for name, tensor in state.items()}))
    with pytest.raises(FedstillError, match="finite numbers, not nan"):
        pack(tmp_path / "a.fed", model="mlp", data="embedded:optdigits", epochs=1, mean=torch.nan)


def test_a_safetensors_file_that_is_no_bundle(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.zeros(2)}, tmp_path / "w.fed")
    with pytest.raises(FedstillError, match="has no description"):
        read_bundle(tmp_path / "w.fed")


# -- no code in a file is ever executed --------------------------------------------------------------------------------------


class Malicious:
    """A pickle that would leave a trace if anything in it ran."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path, protocol: int) -> None:
    trace, weights = tmp_path / "ran", tmp_path / "w.pt"
    torch.save({"w": Malicious(trace)}, weights, pickle_protocol=protocol)
    with pytest.raises(FedstillError, match="could run code is never loaded"):
        pack(tmp_path / "a.fed", model="mlp", weights=weights, classes=CLASSES, image_size=8, channels=1)
    weights.write_bytes(pickle.dumps(Malicious(trace), protocol))
    with pytest.raises(FedstillError):
        pack(tmp_path / "a.fed", model="mlp", weights=weights, classes=CLASSES, image_size=8, channels=1)
    weights.rename(tmp_path / "b.fed")
    with pytest.raises(FedstillError, match="not a bundle"):
        read_bundle(tmp_path / "b.fed")
    assert not trace.exists()
    assert not (tmp_path / "a.fed").exists()


def test_a_bundle_cannot_name_a_callable_unless_trusted(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    tree = about(model=Architecture(name="os:mkdir", options={"path": str(trace)})).model_dump(mode="json", exclude_none=True)
    bundle = read_bundle(forged(tmp_path / "f.fed", tree))
    with pytest.raises(FedstillError, match="allow that with trust_code"):
        bundle.network()
    assert not trace.exists()


def test_an_architecture_cannot_name_another_file(tmp_path: Path) -> None:
    tree = about(model=Architecture(name="mlp", options={"weights": "/etc/passwd"})).model_dump(mode="json", exclude_none=True)
    with pytest.raises(FedstillError, match="must not name another file"):
        read_bundle(forged(tmp_path / "f.fed", tree)).network()


def test_errors_name_no_flags_of_the_command_line() -> None:
    """They are read by those who call the library, too."""
    folder = Path(fedstill.bundles.__file__).parent
    raised = [
        (path, node)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
    ]
    assert len(raised) > 40
    for path, node in raised:
        said = " ".join(part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
        assert "--" not in said, f"{path.name}:{node.lineno}"


# -- programs ----------------------------------------------------------------------------------------------------------------


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.flatten(1))


def program(path: Path, kind: str) -> nn.Module:
    module = Tiny().eval()
    if kind == "torchscript":
        torch.jit.save(torch.jit.script(module), str(path))
    else:
        batch = ({0: torch.export.Dim("n")},)
        torch.export.save(torch.export.export(module, (torch.zeros(2, *SHAPE),), dynamic_shapes=batch), path)
    return module


@pytest.mark.parametrize("kind", ["torchscript", "export"])
def test_programs_open_only_on_trust(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p.pt2"
    module = program(path, kind)
    assert program_kind(path) == kind
    packed = pack(tmp_path / "a.fed", program=path, classes=CLASSES, image_size=8, channels=1)
    bundle = read_bundle(packed.bundle.path)
    with pytest.raises(FedstillError, match=r"a program .* runs code"):
        bundle.network()
    network = bundle.network(trust_code=True)
    x = torch.randn(5, *SHAPE)
    assert torch.allclose(network(x), module(x))
    assert "runs when someone opens" in in_words(bundle)


def test_a_program_given_as_weights_is_named(tmp_path: Path) -> None:
    program(tmp_path / "w.pt", "torchscript")
    with pytest.raises(FedstillError, match="is a program, not weights"):
        pack(tmp_path / "a.fed", model="mlp", weights=tmp_path / "w.pt", classes=CLASSES, image_size=8, channels=1)


def test_a_program_of_other_sizes_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "p.ts", "torchscript")
    with pytest.raises(FedstillError, match="does not take inputs of shape") as caught:
        pack(tmp_path / "a.fed", program=tmp_path / "p.ts", classes=CLASSES, image_size=9, channels=1)
    assert "\n" not in str(caught.value)
    with pytest.raises(FedstillError, match="3 outputs, but 2 classes"):
        pack(tmp_path / "a.fed", program=tmp_path / "p.ts", classes=CLASSES[:2], image_size=8, channels=1)


# -- words -------------------------------------------------------------------------------------------------------------------


def test_plain_words_say_what_is_inside_and_what_it_reveals(bundle: Bundle) -> None:
    words = in_words(bundle)
    for part in ("mlp", "cat, dog, owl", "cat 4, dog 4, owl 4", "no images", "how many samples of each class"):
        assert part in words
    bare = write_bundle(bundle.path, about(), model=mlp().state_dict())
    assert "how many samples" not in in_words(bare)
