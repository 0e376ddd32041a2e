"""Tables of numbers and words as vectors: columns, missing values, categories, standardisation."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.data.loading import load_domain, load_domains
from fedstill.data.reading import Reading
from fedstill.task import short_name


@pytest.fixture
def ward(tmp_path):
    """``ward("north", age=[...], label=[...])``: a CSV file of these columns."""

    def write(name, ending="csv", **columns):
        frame = pandas.DataFrame(columns)
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False)
        return path

    return write


def load(tmp_path, *names, **options):
    unlabelled = options.pop("unlabelled", ())
    return load_domains(
        list(names), root=tmp_path, cache=tmp_path / "cache", unlabelled=unlabelled, reading=Reading(**options)
    )  # fmt: skip


def everything(domain):
    """All rows and labels of a domain, in the order of the first coordinate."""
    x, y = torch.cat([domain.train.x, domain.test.x]), torch.cat([domain.train.y, domain.test.y])
    order = x[:, 0].argsort()
    return x[order], y[order]


AGES = [float(20 + i) for i in range(20)]
SICK = ["yes" if i >= 10 else "no" for i in range(20)]


def test_numbers_and_words_become_vectors(tmp_path, ward):
    ward("north", age=AGES, sex=["f", "m"] * 10, label=SICK)
    domain = load(tmp_path, "north", standardise="none")["north"]
    x, y = everything(domain)
    assert domain.columns == ("age", "sex = f", "sex = m")
    assert x.dtype == torch.float32
    assert x[:, 0].tolist() == AGES
    assert x[:3, 1:].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert domain.classes == ("no", "yes")
    assert y.tolist() == [0] * 10 + [1] * 10
    assert (len(domain.train), len(domain.test)) == (16, 4)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_csv_and_parquet_are_the_same(tmp_path, ward, ending):
    ward("a", ending, age=AGES, smoker=[True, False] * 10, ward=["x", None] * 10, dose=[1.5, None] * 10, y=[1, 2] * 10)
    domain = load(tmp_path, "a", standardise="none")["a"]
    assert domain.columns == ("age", "smoker", "dose", "dose missing", "ward = x", "ward = (missing)")
    x, _ = everything(domain)
    assert x[0].tolist() == [20, 1, 1.5, 0, 1, 0]
    assert x[1].tolist() == [21, 0, 1.5, 1, 0, 1]
    assert domain.classes == ("1", "2")


def test_the_label_is_named_or_found(tmp_path, ward):
    ward("a", Age=AGES, Target=SICK, diagnosis=[0, 1] * 10)
    assert load(tmp_path, "a")["a"].classes == ("no", "yes")  # capitals do not matter
    assert load(tmp_path, "a", label="diagnosis")["a"].columns == ("Age", "Target = no", "Target = yes")
    ward("b", age=AGES, diagnosis=[0, 1] * 10)
    with pytest.raises(FedstillError, match="'b' has no label column: set data.label; its columns are age, diagnosis"):
        load(tmp_path, "b")
    with pytest.raises(FedstillError, match=r"'b' has no column 'sick' \(data.label\); its columns are age, diagnosis"):
        load(tmp_path, "b", label="sick")
    with pytest.raises(FedstillError, match="column 'age' of 'c' cannot be the label: it holds numbers such as 20.5"):
        ward("c", age=[a + 0.5 for a in AGES], y=SICK)
        load(tmp_path, "c", label="age")


def test_whole_numbers_with_gaps_are_labels_still(tmp_path, ward):
    ward("a", age=AGES, label=[None, *[i % 2 for i in range(19)]])  # pandas makes floats of these
    domain = load(tmp_path, "a")["a"]
    assert domain.classes == ("0", "1")
    assert len(domain.train) + len(domain.test) == 19


def test_missing_numbers_are_the_mean_and_say_so_in_every_domain(tmp_path, ward):
    ward("a", age=AGES, dose=[2.0] * 20, label=SICK)
    ward("b", age=AGES, dose=[1.0, 3.0, None, None] * 5, label=SICK)
    for how in ("none", "shared", "local"):
        found = load(tmp_path, "a", "b", standardise=how)
        assert found["a"].columns == found["b"].columns == ("age", "dose", "dose missing")
        assert everything(found["a"])[0][:, 2].tolist() == [0.0] * 20
        x, _ = everything(found["b"])
        assert x[:, 2].tolist() == [0, 0, 1, 1] * 5
        assert not x.isnan().any()
        assert len(x[2::4, 1].unique()) == 1
        if how != "none":
            assert x[2, 1].abs() < 1e-6


def test_missing_words_are_a_category(tmp_path, ward):
    ward("a", age=AGES, sex=["f", "m"] * 10, label=SICK)
    ward("b", age=AGES, sex=["f", None] * 10, label=SICK)
    found = load(tmp_path, "a", "b")
    assert found["a"].columns == ("age", "sex = f", "sex = m", "sex = (missing)")
    assert everything(found["b"])[0][1, 1:].tolist() == [0, 0, 1]


def test_categories_are_those_of_all_domains(tmp_path, ward):
    ward("a", age=AGES, ward=["red"] * 20, label=SICK)
    ward("b", age=AGES, ward=["blue"] * 20, label=SICK)
    ward("pool", age=AGES, ward=["green"] * 20)
    found = load(tmp_path, "a", "b", "pool", unlabelled=["pool"])
    assert {domain.columns for domain in found.values()} == {("age", "ward = blue", "ward = green", "ward = red")}
    assert found["pool"].train.x.shape == (20, 4)  # nothing is held out of it
    assert found["pool"].train.y is None


def test_shared_local_and_no_standardisation(tmp_path, ward):
    ward("a", age=AGES, constant=[7.0] * 20, label=SICK)
    ward("b", age=[a + 100 for a in AGES], constant=[7.0] * 20, label=SICK)
    ward("pool", age=[a + 1000 for a in AGES], constant=[7.0] * 20)
    shared, local, none = (
        load(tmp_path, "a", "b", "pool", unlabelled=["pool"], standardise=how) for how in ("shared", "local", "none")
    )
    together = torch.cat([none["a"].train.x, none["b"].train.x])[:, 0].double()  # of the training data of the clients
    mean, deviation = together.mean(), together.std(correction=0)
    for name in ("a", "b", "pool"):
        raw = none[name].train.x[:, 0].double()
        assert torch.allclose(shared[name].train.x[:, 0].double(), (raw - mean) / deviation, atol=1e-5)
        own = none[name].train.x[:, 0].double()
        assert torch.allclose(local[name].train.x[:, 0].double(), (raw - own.mean()) / own.std(correction=0), atol=1e-5)
        assert torch.allclose(
            shared[name].test.x[:, 0].double(), (none[name].test.x[:, 0].double() - mean) / deviation, atol=1e-5
        )
        assert shared[name].train.x[:, 1].abs().max() == 0
    assert load(tmp_path, "a", "b")["a"].standardised == "shared"  # by default


def test_only_the_measured_domains_give_the_shared_moments(tmp_path, ward):
    ward("a", age=AGES, label=SICK)
    ward("target", age=[1000 * a for a in AGES], label=SICK)
    found = load_domains(["a", "target"], root=tmp_path, cache=tmp_path / "cache", measured=["a"])
    assert found["a"].train.x.mean().abs() < 1e-6


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"age": AGES}, "domain 'b' lacks the column 'dose' that 'a' has"),
        ({"age": AGES, "dose": AGES, "more": AGES}, "domain 'a' lacks the column 'more' that 'b' has"),
        ({"age": AGES, "dose": ["low"] * 20}, "column 'dose' holds numbers in 'a' and words in 'b', such as 'low'"),
        ({"age": AGES, "dose": [*AGES[1:], float("inf")]}, "column 'dose' of 'b' holds an infinite number in row 19"),
    ],
)
def test_columns_that_do_not_go_together(tmp_path, ward, other, says):
    ward("a", age=AGES, dose=AGES, label=SICK)
    ward("b", **other, label=SICK)
    with pytest.raises(FedstillError, match=says) as caught:
        load(tmp_path, "a", "b")
    assert "\n" not in str(caught.value)


def test_a_column_that_is_empty_in_one_domain_is_missing_there(tmp_path, ward):
    ward("a", age=AGES, dose=AGES, ward=["x"] * 20, label=SICK)
    ward("b", age=AGES, dose=[None] * 20, ward=[None] * 20, label=SICK)
    found = load(tmp_path, "a", "b")
    assert found["b"].columns == ("age", "dose", "dose missing", "ward = x", "ward = (missing)")
    x, _ = everything(found["b"])
    assert x[:, 1].abs().max() == 0
    assert x[:, 2:].tolist() == [[1, 0, 1]] * 20


def test_identifiers_are_refused_or_left_out(tmp_path, ward):
    many = 150
    ward("a", patient=[f"P{i:03}" for i in range(many)], age=range(many), label=[0, 1] * 75)
    with pytest.raises(FedstillError, match=r"'patient' has more than 100 different words, .*data.ignore = \['patient'\]"):
        load(tmp_path, "a")
    assert load(tmp_path, "a", ignore=["patient"])["a"].columns == ("age",)


def test_dates_are_refused(tmp_path, ward):
    ward("a", "parquet", age=AGES, seen=pandas.date_range("2024-01-01", periods=20), label=SICK)
    with pytest.raises(FedstillError, match=r"column 'seen' of 'a' holds timestamp.*: name it in data.ignore"):
        load(tmp_path, "a")


# -- how files are written -------------------------------------------------------------------------------------------------------


def test_the_row_numbers_of_pandas_are_no_column(tmp_path):
    frame = pandas.DataFrame({"age": AGES, "label": SICK})
    frame.to_csv(tmp_path / "a.csv")
    frame.set_index(pandas.Index(range(5, 25))).to_parquet(tmp_path / "b.parquet")
    assert [domain.columns for domain in load(tmp_path, "a", "b").values()] == [("age",), ("age",)]


@pytest.mark.parametrize(
    "text",
    [
        "age;dose;label\n" + "".join(f"{20 + i};{i},5;{i % 2}\n" for i in range(20)),
        "age\tdose\tlabel\n" + "".join(f"{20 + i}\t{i}.5\t{i % 2}\n" for i in range(20)),
        "age, dose, label\n" + "".join(f"{20 + i}, {i}.5, {i % 2}\n" for i in range(20)),
        '\ufeff"age","dose","label"\r\n' + "".join(f'"{20 + i}","{i}.5",{i % 2}\r\n' for i in range(20)),
    ],
    ids=["semicolons", "tabs", "blanks", "quotes"],
)
def test_dialects_of_csv(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    domain = load(tmp_path, "a", standardise="none")["a"]
    assert domain.columns == ("age", "dose")
    assert everything(domain)[0][:2].tolist() == [[20, 0.5], [21, 1.5]]


def test_a_question_mark_among_numbers_is_a_missing_one(tmp_path):
    (tmp_path / "a.csv").write_text("age,dose,y\n" + "".join(f"{20 + i},{'?' if i % 2 else i},{i % 2}\n" for i in range(20)))
    assert load(tmp_path, "a")["a"].columns == ("age", "dose", "dose missing")


def test_a_file_without_the_names_of_its_columns(tmp_path):
    (tmp_path / "a.csv").write_text("1,14.2,1.7\n1,13.2,1.8\n")
    with pytest.raises(FedstillError, match="the first line of .*a.csv' holds numbers, not the names of its columns"):
        load(tmp_path, "a")


def test_a_fraction_far_down_a_column(tmp_path):
    rows = 12_000  # more than `datasets` reads at once
    (tmp_path / "a.csv").write_text("dose,y\n" + "".join(f"{i if i < rows - 9 else 0.5},{i % 2}\n" for i in range(rows)))
    assert len(load(tmp_path, "a")["a"].train) == 9600


def test_a_folder_of_csv_files_has_a_test_set(tmp_path):
    (tmp_path / "a").mkdir()
    for name, count in (("train", 10), ("test", 4)):
        frame = pandas.DataFrame({"age": range(count), "label": [0, 1] * (count // 2)})
        frame.to_csv(tmp_path / "a" / f"{name}.csv", index=False)
    domain = load(tmp_path, "a")["a"]
    assert (len(domain.train), len(domain.test)) == (10, 4)


def test_domains_are_called_without_the_ending_of_their_file(tmp_path, ward):
    ward("north", age=AGES, label=SICK)
    assert len(load(tmp_path, "north.csv")["north.csv"].train) == 16
    names = ["sites/north.csv", "south.parquet", "west.NPZ", "east.tsv", "a.b", "x.jsonl"]
    assert [short_name(name) for name in names] == ["north", "south", "west", "east", "a.b", "x"]


# -- text or table? --------------------------------------------------------------------------------------------------------------

LONG = "the film was long and dull but the actors were good"


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"text": ["up", "down"] * 10}, "text"),  # by its name
        ({"note": [LONG] * 20}, "text"),  # by its length
        ({"note": [LONG] * 20, "id": range(20)}, "text"),
        ({"sex": ["f", "m"] * 10}, "vector"),
        ({"sex": ["f", "m"] * 10, "age": range(20)}, "vector"),
        ({"sex": ["f", "m"] * 10, "note": [LONG] * 20}, "vector"),
    ],
)
def test_text_or_table(tmp_path, ward, columns, kind):
    ward("a", **columns, label=[0, 1] * 10)
    assert {torch.int32: "text", torch.float32: "vector"}[load(tmp_path, "a")["a"].train.x.dtype] == kind
    assert load(tmp_path, "a", kind="table")["a"].train.x.dtype == torch.float32
    assert load(tmp_path, "a", kind="text")["a"].train.x.dtype == torch.int32


def test_kinds_that_are_not_there(tmp_path, ward):
    ward("a", age=AGES, label=SICK)
    with pytest.raises(FedstillError, match="'a' has no text column"):
        load(tmp_path, "a", kind="text")
    with pytest.raises(FedstillError, match="'a' has no image column"):
        load(tmp_path, "a", kind="image")
    ward("b", note=[LONG] * 20, label=SICK)
    with pytest.raises(FedstillError, match=r"a is table, b is text \(data.kind says"):
        load(tmp_path, "a", "b")


def test_images_beside_a_table(tmp_path):
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (6, 6), i).save(tmp_path / "pets" / name / f"{i}.png")
    (tmp_path / "pets" / "owners.csv").write_text("name,phone\nAnn,12\n")
    assert load(tmp_path, "pets", kind="image")["pets"].classes == ("cat", "dog")
    with pytest.raises(FedstillError, match="is a folder of images, and data.kind = 'table'"):
        (tmp_path / "pets" / "owners.csv").unlink()
        load(tmp_path, "pets", kind="table")


def test_one_domain_by_itself(tmp_path, ward):
    ward("a", age=AGES, label=SICK)
    domain = load_domain("a", root=tmp_path, cache=tmp_path / "cache", limit=8)
    assert domain.train.x.shape == (8, 1)
    assert domain.train.x.mean().abs() < 1e-6
    assert np.isclose(float(domain.train.x.std(correction=0)), 1, atol=1e-5)
