"""A data set of other things as a useless source."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from fedstill.core.errors import FedstillError
from fedstill.data.loading import load_domains


def folder(place, names):
    for label, name in enumerate(names):
        (place / name).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (8, 8), 20 * label + i).save(place / name / f"{i}.png")
    return str(place)


def test_class_i_is_class_i_whatever_it_is_called(tmp_path):
    digits, clothes = folder(tmp_path / "digits", ["0", "1", "2"]), folder(tmp_path / "clothes", ["coat", "shirt"])
    with pytest.raises(FedstillError, match="do not have the same classes"):
        load_domains({"digits": digits, "clothes": clothes}, cache=tmp_path / "cache")
    both = load_domains({"digits": digits, "clothes": clothes}, cache=tmp_path / "cache", classes="position")
    assert both["digits"].classes == both["clothes"].classes == ("0", "1", "2")
    brightest = both["clothes"].train.x.flatten(1)[:, 0] >= 20
    assert torch.equal(both["clothes"].train.y, brightest.long())
    with pytest.raises(FedstillError, match="has 3 classes, 'clothes' only 2"):
        load_domains({"clothes": clothes, "digits": digits}, cache=tmp_path / "cache", classes="position")
