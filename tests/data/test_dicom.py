"""Folders of DICOM files, by the extra fedstill[dicom]."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.data.loading import load_domain, load_domains
from fedstill.data.reading import Reading

pydicom = pytest.importorskip("pydicom", reason="the extra fedstill[dicom] is not installed")

RAMP = np.arange(64).reshape(8, 8)


def write(path, values, **tags):
    """A DICOM file of these values, uint8, uint16 or int16, grey or in colour."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    values = np.asarray(values)
    found = Dataset()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = found.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID = generate_uid()
    found.Rows, found.Columns = values.shape[:2]
    found.SamplesPerPixel = 1 if values.ndim == 2 else 3
    found.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    if values.ndim == 3:
        found.PlanarConfiguration = 0
    bits = 8 * values.dtype.itemsize
    found.BitsAllocated = found.BitsStored = bits
    found.PixelRepresentation = int(values.dtype.kind == "i")
    for name, value in tags.items():
        setattr(found, name, value)
    found.HighBit = found.BitsStored - 1
    found.PixelData = values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save_as(path, enforce_file_format=True)


def read(tmp_path, values, reading=None, name="site", **tags):
    """What becomes of one image."""
    for i in range(2):
        write(tmp_path / name / f"{i}.dcm", values, **tags)
    found = load_domain(str(tmp_path / name), cache=tmp_path / "cache", reading=reading).train.x[0].permute(1, 2, 0).numpy()
    return found[..., 0] if found.shape[-1] == 1 else found


def test_the_window_in_hounsfield_units(tmp_path):
    stored = (RAMP * 40).astype(np.int16)  # 0 .. 2520, in Hounsfield units -1024 .. 1496
    window = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400}
    units = stored - 1024.0
    low = 40 - 0.5 - 399 / 2  # DICOM PS3.3, C.11.2.1.2.1
    expected = np.rint(np.clip((units - low) / 399, 0, 1) * 255)
    assert (read(tmp_path, stored, **window) == expected).all()
    # a range of one's own is in the same units, and wins over the window
    expected = np.rint(np.clip((units + 1000) / 2000, 0, 1) * 255)
    assert (read(tmp_path, stored, Reading(range=(-1000, 1000)), "own", **window) == expected).all()


def test_the_first_of_several_windows(tmp_path):
    stored = (RAMP * 4).astype(np.uint16)
    several = read(tmp_path, stored, WindowCenter=[126, 60], WindowWidth=[253, 20])
    assert (several == read(tmp_path, stored, name="one", WindowCenter=126, WindowWidth=253)).all()
    assert len(np.unique(several)) == 64


def test_monochrome1_is_inverted(tmp_path):
    stored = (RAMP * 65).astype(np.uint16)
    plain = read(tmp_path, stored, BitsStored=12)
    assert (plain == np.rint(stored * (255 / 4095))).all()
    inverted = read(tmp_path, stored, name="inverted", BitsStored=12, PhotometricInterpretation="MONOCHROME1")
    assert (inverted == np.rint(255 - stored * (255 / 4095))).all()
    light = read(tmp_path, (RAMP * 4).astype(np.uint8), name="light", PhotometricInterpretation="MONOCHROME1")
    assert (light == 255 - RAMP * 4).all()


def test_values_that_use_little_of_their_bits_need_a_range(tmp_path):
    with pytest.raises(FedstillError, match="hold values from -1000 to 890, with room up to 32767.*set data.range") as caught:
        read(tmp_path, (RAMP * 30 - 1000).astype(np.int16))
    assert "\n" not in str(caught.value)


def test_colour_and_bytes(tmp_path):
    colours = np.stack([RAMP * 4, 255 - RAMP * 4, RAMP.T * 4], axis=-1).astype(np.uint8)
    assert (read(tmp_path, colours) == colours).all()
    assert (read(tmp_path, (RAMP * 4).astype(np.uint8), name="grey") == RAMP * 4).all()


def test_classes_splits_and_damaged_files(tmp_path):
    for split, count in (("train", 6), ("test", 2)):
        for label, name in enumerate(("benign", "malignant")):
            for i in range(count):
                write(tmp_path / "ward" / split / name / f"{i}.dcm", np.full((8, 8), 100 * label + i, dtype=np.uint8))
    torn = tmp_path / "ward" / "train" / "benign" / "3.dcm"
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(FedstillError, match=r"benign/3.dcm' cannot be decoded"):
        load_domains(["ward"], root=tmp_path, cache=tmp_path / "cache")
    domain = load_domains(["ward"], root=tmp_path, cache=tmp_path / "cache", reading=Reading(unreadable="skip"))["ward"]
    assert domain.classes == ("benign", "malignant")
    assert domain.train.counts(2).tolist() == [5, 6]
    assert torch.equal(domain.train.x[:, 0, 0, 0] >= 100, domain.train.y == 1)
    assert "benign/3.dcm" in domain.notes[0]


def test_several_frames_are_refused(tmp_path):
    with pytest.raises(FedstillError, match="it holds 4 frames"):
        read(tmp_path, RAMP.astype(np.uint8), NumberOfFrames=4)


def test_without_the_extra_it_is_one_line(tmp_path, monkeypatch):
    write(tmp_path / "site" / "0.dcm", RAMP.astype(np.uint8))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(FedstillError, match=r"needs pydicom: pip install 'fedstill\[dicom\]'"):
        load_domain(str(tmp_path / "site"), cache=tmp_path / "cache", reading=Reading(unreadable="skip"))
