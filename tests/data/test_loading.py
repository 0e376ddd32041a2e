import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import FedstillError
from fedstill.data.embedded import EMBEDDED, _mnist_digits, _mnist_part
from fedstill.data.loading import load_domain, load_domains
from fedstill.data.reading import Reading
from fedstill.data.text import TextOptions

NAMES = ["cat", "dog", "owl"]


def picture(label, mode="L", size=(6, 6)):
    return Image.new(mode, size, 80 * label if mode == "L" else (80 * label, 10, 20))


def write_table(folder: Path, mode="L", names=NAMES, count=30, test=9, size=(6, 6)) -> Path:
    folder.mkdir(parents=True)
    features = datasets.Features(
        {"id": datasets.Value("int64"), "picture": datasets.Image(), "kind": datasets.ClassLabel(names=names)}
    )
    for split, n in (("train", count), ("test", test)):
        labels = [i % len(names) for i in range(n)]
        rows = {"id": list(range(n)), "picture": [picture(y, mode, size) for y in labels], "kind": labels}
        if n:
            datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}.parquet")
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_a_folder_of_parquet_by_its_feature_types(tmp_path, cache):
    write_table(tmp_path / "pets")
    domain = load_domain("pets", root=tmp_path, cache=cache)
    assert domain.classes == ("cat", "dog", "owl")
    assert domain.train.x.shape == (30, 1, 6, 6)
    assert domain.test.x.shape == (9, 1, 6, 6)
    assert domain.train.x.dtype == torch.uint8
    assert domain.train.y is not None
    assert (domain.train.x[:, 0, 0, 0] == 80 * domain.train.y).all()


def test_resized_and_converted(tmp_path, cache):
    write_table(tmp_path / "pets", mode="RGB")
    grey = load_domain(str(tmp_path / "pets"), image_size=4, channels=1, cache=cache)
    assert grey.train.x.shape == (30, 1, 4, 4)
    assert grey.train.x[1].unique().tolist() == [round(0.299 * 80 + 0.587 * 10 + 0.114 * 20)]


def test_one_parquet_file_has_a_fifth_held_out_by_class(tmp_path, cache):
    path = write_table(tmp_path / "pets") / "train.parquet"
    domain = load_domain(str(path), cache=cache)
    assert domain.train.counts(3).tolist() == [8, 8, 8]
    assert domain.test.counts(3).tolist() == [2, 2, 2]


@pytest.mark.parametrize("splits", [True, False])
def test_an_image_folder(tmp_path, cache, splits):
    # "test" as a class name must not become a test set on its own.
    classes = ["test", "zebra"]
    for split, n in (("train", 10), ("test", 4)) if splits else (("", 10),):
        for label, name in enumerate(classes):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                picture(label, "RGB", (5 + i, 7)).save(folder / f"{i}.png")
    domain = load_domain("pictures", root=tmp_path, image_size=8, cache=cache)
    assert domain.classes == ("test", "zebra")
    assert len(domain.train) + len(domain.test) == (28 if splits else 20)
    assert domain.test.counts(2).tolist() == ([4, 4] if splits else [2, 2])
    assert domain.train.y is not None
    assert (domain.train.x[:, 0, 0, 0] == 80 * domain.train.y).all()


def test_a_flat_folder_of_images_has_no_labels(tmp_path, cache):
    for i in range(10):
        picture(i % 3).save(tmp_path / f"{i}.png")
    domain = load_domain(str(tmp_path), cache=cache)
    assert domain.train.y is None
    assert domain.classes == ()
    assert (len(domain.train), len(domain.test)) == (8, 2)


def test_string_labels_and_text(tmp_path, cache):
    rows = {"label": ["spam", "ham"] * 10, "text": [f"Hello world {i}!" for i in range(20)]}
    datasets.Dataset.from_dict(rows).to_csv(tmp_path / "mail.csv")
    domain = load_domain("mail.csv", root=tmp_path, reading=Reading(text=TextOptions(length=5, vocab=50)), cache=cache)
    assert domain.classes == ("ham", "spam")
    assert domain.train.x.shape == (16, 5)
    assert domain.train.x[:, 4].eq(0).all()  # hello, world, number, ! and then padding
    assert domain.train.x[:, :4].gt(0).all()
    assert domain.train.x.lt(50).all()


def test_labels_of_minus_one_and_one_are_two_classes(tmp_path, cache):
    (tmp_path / "signs.csv").write_text("text,label\n" + "up,1\ndown,-1\n" * 10)
    domain = load_domain("signs.csv", root=tmp_path, cache=cache)
    assert domain.classes == ("-1", "1")
    assert domain.train.counts(2).tolist() == [8, 8]


def test_a_data_set_saved_to_disk(tmp_path, cache):
    rows = {"text": ["a", "b"] * 5, "label": [0, 1] * 5}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(tmp_path / "saved")
    domain = load_domain("saved", root=tmp_path, cache=cache)
    assert (len(domain.train), len(domain.test)) == (8, 2)


def test_hidden_test_labels_give_way_to_the_validation_set(tmp_path, cache):
    folder = tmp_path / "glue"
    folder.mkdir()
    for split, labels in (("train", [0, 1] * 5), ("validation", [0, 1]), ("test", [-1, -1, -1])):
        rows = {"sentence": ["a b"] * len(labels), "label": labels}
        features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["n", "p"])})
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}.parquet")
    domain = load_domain("glue", root=tmp_path, cache=cache)
    assert domain.test.counts(2).tolist() == [1, 1]


def test_limits_are_stratified_and_seeded(tmp_path, cache):
    write_table(tmp_path / "pets", count=90)
    one, again, other = (load_domain("pets", root=tmp_path, limit=12, test_limit=3, seed=seed, cache=cache) for seed in (0, 0, 1))
    assert one.train.counts(3).tolist() == [4, 4, 4]
    assert one.test.counts(3).tolist() == [1, 1, 1]
    assert one.train.y is not None
    assert again.train.y is not None
    assert other.train.y is not None
    assert one.train.y.equal(again.train.y)
    assert not one.train.y.equal(other.train.y)
    assert len([f for f in cache.iterdir() if f.stat().st_size > 1000]) == 1, "limits are cut from one cached domain"


def test_loading_again_maps_the_cached_file_without_datasets(tmp_path, cache):
    write_table(tmp_path / "pets")
    load_domain("pets", root=tmp_path, cache=cache)
    code = (
        "import sys, json; from fedstill.data import load_domain\n"
        f"d = load_domain('pets', root={str(tmp_path)!r}, cache={str(cache)!r})\n"
        "maps = open('/proc/self/maps').read() if sys.platform == 'linux' else 'pets'\n"
        "print(json.dumps([len(d.train), 'datasets' in sys.modules, 'pets' in maps]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == [30, False, True]


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_a_damaged_cache_file_is_made_anew(tmp_path, cache, damage):
    write_table(tmp_path / "pets")
    before = load_domain("pets", root=tmp_path, cache=cache).train.x.clone()
    for path in cache.iterdir():
        whole = path.read_bytes()
        path.unlink()  # not in place: the old file may still be mapped
        path.write_bytes({"cut": whole[:-7], "garbage": b"\xff" * len(whole), "empty": b""}[damage])
    with pytest.warns(UserWarning, match="is damaged and is made again") as told:
        assert load_domain("pets", root=tmp_path, cache=cache).train.x.equal(before)
    assert len(told) == len(list(cache.iterdir())), "one line a file"
    assert not [path for path in cache.iterdir() if path.name.startswith(".")], "nothing is left lying about"


def test_changed_files_are_read_again(tmp_path, cache):
    folder = write_table(tmp_path / "pets")
    assert len(load_domain("pets", root=tmp_path, cache=cache).train) == 30
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    write_table(folder, count=33)
    assert len(load_domain("pets", root=tmp_path, cache=cache).train) == 33


def test_cache_folder_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "elsewhere"))
    load_domain("embedded:optdigits", limit=10)
    assert list((tmp_path / "elsewhere").iterdir())


def test_domains_share_a_shape_and_labels_are_aligned_by_name(tmp_path, cache):
    write_table(tmp_path / "one", size=(6, 6))
    write_table(tmp_path / "two", mode="RGB", names=["owl", "cat", "dog"], size=(9, 5))
    pair = load_domains({"first": "one", "second": "two"}, root=tmp_path, cache=cache)
    assert [tuple(d.train.x.shape[1:]) for d in pair.values()] == [(3, 6, 6), (3, 6, 6)]
    assert pair["second"].classes == ("cat", "dog", "owl")
    assert pair["second"].train.y is not None
    assert pair["second"].train.y[:3].tolist() == [2, 0, 1]  # owl, cat, dog


def test_domains_with_other_classes_are_refused_or_united(tmp_path, cache):
    write_table(tmp_path / "one")
    write_table(tmp_path / "two", names=["cat", "emu"])
    with pytest.raises(FedstillError, match="'one' and 'two' do not have the same classes: only one has dog, emu, owl"):
        load_domains(["one", "two"], root=tmp_path, cache=cache)
    united = load_domains(["one", "two"], root=tmp_path, cache=cache, classes="union")
    assert united["one"].classes == united["two"].classes == ("cat", "dog", "owl", "emu")
    assert united["two"].test.counts(4).tolist() == [5, 0, 0, 4]
    pool = load_domains(["one", "two"], root=tmp_path, cache=cache, unlabelled=["two"])["two"]
    assert pool.classes == ("cat", "emu")


def test_embedded_digits_are_disjoint_and_complete(cache):
    parts = [_mnist_part(part)[0] for part in "ABCD"]
    assert [len(part) for part in parts] == [1500, 1500, 1000, 1000]
    assert len(np.unique(np.concatenate(parts).reshape(5000, -1), axis=0)) == 5000
    domains = load_domains([f"embedded:{name}" for name in EMBEDDED], image_size=16, limit=200, cache=cache)
    for domain in domains.values():
        assert domain.train.x.shape == (200, 3, 16, 16)
        assert domain.train.counts(10).min() >= 18
        assert domain.test.counts(10).min() >= 19


def test_embedded_files_are_read_as_their_packages_read_them(monkeypatch):
    """Without importing the packages, which takes seconds; with them where the files have moved."""
    quick = {name: EMBEDDED[name]() for name in ("mnist", "optdigits", "blended")}
    monkeypatch.setattr("fedstill.data.embedded._packaged", lambda package, name: None)
    _mnist_digits.cache_clear()
    for name, (pixels, labels) in quick.items():
        slow_pixels, slow_labels = EMBEDDED[name]()
        assert pixels.dtype == slow_pixels.dtype == np.uint8
        assert np.array_equal(pixels, slow_pixels)
        assert np.array_equal(labels, slow_labels)


def test_blended_is_the_absolute_difference():
    from sklearn.datasets import load_sample_images

    digits, _ = _mnist_part("B")
    blends, _ = EMBEDDED["blended"]()
    blank = digits[0] == 0
    photograph = np.concatenate([image.reshape(-1, 3) for image in load_sample_images().images])
    colours = {tuple(colour) for colour in photograph}
    assert all(tuple(colour) in colours for colour in blends[0][blank]), "without ink the photograph shows"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("embedded:mnits", "did you mean 'embedded:mnist'"),
        ("pest", "did you mean 'pets'"),
        ("some where", "not a folder, a file or a Hub name"),
        ("./photos", "^no such folder or file: ./photos"),
        ("../no/photos", "^no such folder or file: ../no/photos$"),
        ("/no/photos", "^no such folder or file: /no/photos$"),
        ("~/no/photos", "^no such folder or file: ~/no/photos$"),
        ("note.txt", "a data file is one of"),
        ("hollow", "neither tables nor images"),
        ("numbers.csv", "no column besides its label"),
        ("broken.parquet", "cannot read 'broken.parquet'"),
        ("torn", "torn/b.png' cannot be decoded"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path, cache, source, message, monkeypatch):
    monkeypatch.setattr("fedstill.data.tables.socket.getaddrinfo", no_network)
    write_table(tmp_path / "pets")
    (tmp_path / "hollow").mkdir()
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "numbers.csv").write_text("label\n1\n2\n")
    (tmp_path / "broken.parquet").write_bytes(b"not a table")
    (tmp_path / "torn").mkdir()
    picture(1).save(tmp_path / "torn" / "a.png")
    (tmp_path / "torn" / "b.png").write_bytes((tmp_path / "torn" / "a.png").read_bytes()[:50])
    with pytest.raises(FedstillError, match=message) as caught:
        load_domain(source, root=tmp_path, cache=cache)
    assert "\n" not in str(caught.value)


def no_network(*_):
    raise OSError("no network")


@pytest.mark.parametrize("options", [{"channels": 2}, {"image_size": 0}, {"limit": 0}, {"root": os.devnull + "/nowhere"}])
def test_bad_options(cache, options):
    with pytest.raises(FedstillError):
        load_domain("embedded:optdigits" if "root" not in options else "x", cache=cache, **options)


def test_the_same_domain_twice_needs_two_names(cache):
    with pytest.raises(FedstillError, match="named twice"):
        load_domains(["embedded:optdigits", "embedded:optdigits"], cache=cache)
    assert len(load_domains({"a": "embedded:optdigits", "b": "embedded:optdigits"}, cache=cache)) == 2


# -- the layouts of folders --------------------------------------------------------------------------------------------------


def folder_of(place: Path, **counts: int) -> Path:
    """Pictures in folders: ``a__b=3`` are three in a/b, ``here=2`` two in the folder itself."""
    for name, count in counts.items():
        folder = place if name == "here" else place / name.replace("__", "/").replace("dot_", ".")
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            picture(i % 3).save(folder / f"{i}.png")
    return place


@pytest.mark.parametrize(("train", "test"), [("Train", "TEST"), ("TRAINING", "Val"), ("train", "Validation")])
def test_splits_are_known_whatever_their_case(tmp_path, cache, train, test):
    counts = {f"{train}__cat": 4, f"{train}__dog": 3, f"{test}__cat": 2, f"{test}__dog": 1}
    domain = load_domain(str(folder_of(tmp_path / "pets", **counts)), cache=cache)
    assert domain.classes == ("cat", "dog")
    assert (domain.train.counts(2).tolist(), domain.test.counts(2).tolist()) == ([4, 3], [2, 1])


def test_a_class_of_trains_is_no_training_set(tmp_path, cache):
    domain = load_domain(str(folder_of(tmp_path / "traffic", bus=5, car=5, Train=5)), cache=cache)
    assert domain.classes == ("Train", "bus", "car")


def test_hidden_folders_are_no_classes(tmp_path, cache):
    counts = {"cat": 5, "dog": 5, "dot_thumbnails": 5, "cat__dot_checkpoints": 2}
    domain = load_domain(str(folder_of(tmp_path / "pets", **counts)), cache=cache)
    assert domain.classes == ("cat", "dog")
    assert len(domain.train) + len(domain.test) == 10


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"cat": 3, "dog": 3, "here": 1}, "pets' 1 image lies beside the class folders"),
        ({"train__cat": 3, "train__dog": 3, "train": 2}, "train' 2 images lie beside the class folders"),
        ({"train__cat": 3, "train__dog": 3, "test": 2}, "test' 2 images lie beside the class folders"),
    ],
)
def test_loose_images_beside_class_folders_are_refused(tmp_path, cache, counts, says):
    with pytest.raises(FedstillError, match=says) as caught:
        load_domain(str(folder_of(tmp_path / "pets", **counts)), cache=cache)
    assert "\n" not in str(caught.value)


def test_one_class_is_nothing_to_tell_apart(tmp_path, cache):
    cats, dogs = str(folder_of(tmp_path / "a", cat=5)), str(folder_of(tmp_path / "b", dog=5))
    with pytest.raises(FedstillError, match="only one class, 'cat', in .*: nothing to distinguish"):
        load_domains([cats], cache=cache)
    assert load_domains([cats, dogs], classes="union", cache=cache)[cats].classes == ("cat", "dog")
    assert len(load_domains([cats], unlabelled=[cats], cache=cache)) == 1  # as a pool its classes do not matter


def test_too_few_images_for_a_test_set_are_refused(tmp_path, cache):
    few = str(folder_of(tmp_path / "few", cat=1, dog=1))
    with pytest.raises(FedstillError, match="has no test samples: 2 are too few"):
        load_domains([few], cache=cache)
    assert len(load_domains([few], unlabelled=[few], cache=cache)[few].train) == 2


def test_a_pool_without_labels_loses_nothing_to_a_test_set(tmp_path, cache):
    flat, own = str(folder_of(tmp_path / "flat", here=10)), str(folder_of(tmp_path / "own", train=6, test=4))
    for _ in range(2):  # decoded, then from the cache
        pools = load_domains([flat, own], unlabelled=[flat, own], cache=cache)
        assert [len(pool.train) for pool in pools.values()] == [10, 6]
        assert sorted(pools[flat].train.x[:, 0, 0, 0].tolist()) == sorted(80 * (i % 3) for i in range(10))
    assert len(load_domains([flat], unlabelled=[flat], limit=4, cache=cache)[flat].train) == 4
    assert len(load_domains([flat], cache=cache)[flat].train) == 8


def test_the_pools_of_labelled_sources_stay_as_they_are(cache):
    pools = load_domains(["embedded:optdigits"], unlabelled=["embedded:optdigits"], cache=cache)
    assert len(pools["embedded:optdigits"].train) == 1438


def test_a_class_folder_without_images_is_named(tmp_path, cache):
    for part in ("train", "test"):
        for name, count in (("dog", 6), ("house", 6), ("horse", 0)):
            (tmp_path / "split" / part / name).mkdir(parents=True)
            for i in range(count):
                picture(i).save(tmp_path / "split" / part / name / f"{i}.png")
    (tmp_path / "split" / "train" / ".hidden").mkdir()
    for source in ("split", "split", "split/train"):  # decoded, then from the cache
        domain = load_domain(source, root=tmp_path, cache=cache, name="site")
        assert domain.notes == ("'site': the class folder 'horse' holds no images and is left out",)
        assert domain.classes == ("dog", "house")
    (tmp_path / "loose" / "notes").mkdir(parents=True)
    picture(1).save(tmp_path / "loose" / "a.png")
    assert load_domain("loose", root=tmp_path, cache=cache).notes == ()  # no class folders at all
