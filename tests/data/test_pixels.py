"""Pixels arrive as they are: every format, mode and depth, and channels decided over all images."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, TiffImagePlugin

from fedstill.bundles.images import load_images
from fedstill.core.errors import FedstillError
from fedstill.data.loading import load_domain, load_domains
from fedstill.data.reading import Reading

RAMP = np.arange(64).reshape(8, 8)  # 64 greys, all different
BYTES = (RAMP * 4).astype(np.uint8)
COLOURS = np.stack([BYTES, BYTES[::-1], BYTES.T], axis=-1)


@pytest.fixture
def site(tmp_path):
    """``site(image, ...)``: a folder of these images without labels, each a Pillow image, bytes or (image, options of save)."""

    def write(*images, ending="png", name="site"):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(images):
            path = folder / f"{i}.{ending}"
            if isinstance(image, bytes):
                path.write_bytes(image)
            else:
                image, options = image if isinstance(image, tuple) else (image, {})
                image.save(path, **options)
        return folder

    return write


def loaded(folder, **options):
    """All images of a folder in the order of their names, as arrays (n, height, width, channels)."""
    reading = Reading(**{key: options.pop(key) for key in ("range", "unreadable") if key in options})
    found = load_domain(str(folder), reading=reading, cache=folder.parent / "cache", **options)
    assert found.train.x.dtype == torch.uint8
    x = torch.cat([found.train.x, found.test.x]).permute(0, 2, 3, 1).numpy()
    return x[..., 0] if x.shape[-1] == 1 else x


def tags(**values):
    """Tags of a TIFF by number, such as _341=4095."""
    found = TiffImagePlugin.ImageFileDirectory_v2()
    for name, value in values.items():
        found[int(name[1:])] = value
    return {"tiffinfo": found}


def png(values, kind=0, bits=None):
    """A 16-bit PNG, which Pillow cannot write in colour, with the chunk sBIT where asked."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0))
    said = chunk(b"sBIT", bytes([bits] * values[0, 0].size)) if bits else b""
    return b"\x89PNG\r\n\x1a\n" + head + said + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# -- channels --------------------------------------------------------------------------------------------------------------------


def test_a_colour_site_whose_first_file_is_grey_is_colour(site):
    folder = site(Image.fromarray(BYTES), *[Image.fromarray(COLOURS)] * 5)
    assert loaded(folder).shape == (6, 8, 8, 3)
    assert any((image == COLOURS).all() for image in loaded(folder))
    assert load_images(folder).samples.x.shape[1] == 3  # what pack and fuse read
    assert loaded(folder, channels=1).ndim == 3


def test_colour_in_the_test_set_alone_counts(site, tmp_path):
    site(Image.fromarray(BYTES), name="all/train")
    site(Image.fromarray(COLOURS), name="all/test")
    assert load_domain(str(tmp_path / "all"), cache=tmp_path / "cache").train.x.shape[1] == 3


def test_headers_are_looked_at_without_decoding(site, monkeypatch):
    folder = site(*[Image.fromarray(BYTES)] * 5)
    from PIL import ImageFile

    from fedstill.data.folders import open_image_folder
    from fedstill.data.images import look_at

    raw = open_image_folder(folder, sorted(folder.iterdir()))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("pixels were decoded"))
    assert look_at(raw.train.rows, "error", "site").shape == (1, 8, 8)


# -- more than 8 bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "options", "found"),
    [
        (RAMP / 63, {}, "values from 0 to 1, .* such as .0, 1."),
        (RAMP * 10.5 - 100, {}, "from -100 to 561.5"),
        ((RAMP * 65).astype(np.int32), {}, "from 0 to 4095, .* such as .0, 4095."),
        ((RAMP * 65).astype(np.uint16), {}, "from 0 to 4095, with room up to 65535"),
    ],
    ids=["float in 0..1", "float", "12 bits in int32", "12 bits in uint16"],
)
def test_values_without_a_known_range_need_one(site, values, options, found):
    values = values.astype(np.float32) if values.dtype == np.float64 else values
    folder = site(*[(Image.fromarray(values), options)] * 2, ending="tif")
    with pytest.raises(FedstillError, match=f"{found}") as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)
    low, high = float(values.min()), float(values.max())
    expected = np.rint((values - low) / (high - low) * 255)
    assert (loaded(folder, range=(low, high))[0] == expected).all()
    assert len(np.unique(expected)) == 64


def test_what_lies_outside_the_range_is_cut_off_and_nothing_inside_is_an_error(site):
    folder = site(*[Image.fromarray(np.array([[-5, 0, 50, 100, 900]], dtype=np.int32))] * 2, ending="tif")
    assert loaded(folder, range=(0, 100))[0].tolist() == [[0, 0, 128, 255, 255]]
    with pytest.raises(FedstillError, match=r"data.range = \[1000, 2000\], but the images of .* hold values from -5 to 900"):
        loaded(folder, range=(1000, 2000))


def test_missing_values_of_floats_are_black(site):
    values = np.array([[np.nan, 0.0, 1.0]], dtype=np.float32)
    assert loaded(site(*[Image.fromarray(values)] * 2, ending="tif"), range=(0, 1))[0].tolist() == [[0, 0, 255]]


@pytest.mark.parametrize("tag", ["_341", "_281"])
def test_a_tiff_that_says_its_greatest_value_is_believed(site, tag):
    values = (RAMP * 65).astype(np.uint16)
    folder = site(*[(Image.fromarray(values), tags(**{tag: 4000}))] * 2, ending="tif")
    assert (loaded(folder)[0] == np.rint(values * (255 / 4095))).all()


def test_the_limits_of_floats_and_integers_can_be_in_their_tags(site):
    for values in ((RAMP / 63).astype(np.float32), (RAMP * 1000).astype(np.int32)):
        high = float(values.max())
        folder = site(*[(Image.fromarray(values), tags(_340=0.0, _341=high))] * 2, ending="tif", name=values.dtype.name)
        assert (loaded(folder)[0] == np.rint(values / high * 255)).all()


def test_one_scale_for_all_images_of_a_domain(site):
    dark, light = (RAMP * 20).astype(np.uint16), (RAMP * 65).astype(np.uint16)
    folder = site(
        (Image.fromarray(dark), tags(_341=1260)), *[(Image.fromarray(light), tags(_341=4095))] * 4, ending="tif"
    )  # fmt: skip
    found = loaded(folder)
    assert sorted(image.max() for image in found) == [78, 255, 255, 255, 255]


def test_16_bits_that_are_used(site):
    values = (RAMP * 1040).astype(np.uint16)
    expected = np.rint(values * (255 / 65535))
    assert (loaded(site(*[Image.fromarray(values)] * 2, name="a"))[0] == expected).all()
    assert (loaded(site(*[Image.fromarray(values)] * 2, ending="tif", name="b"))[0] == expected).all()
    pgm = b"P5 8 8 65535\n" + values.astype(">u2").tobytes()
    assert (loaded(site(pgm, pgm, ending="pgm", name="c"))[0] == expected).all()
    pgm = b"P5 8 8 4095\n" + (RAMP * 65).astype(">u2").tobytes()
    assert (loaded(site(pgm, pgm, ending="pgm", name="d"))[0] == np.rint(RAMP * 65 * (255 / 4095))).all()


def test_the_significant_bits_of_a_png(site):
    low = (RAMP * 65).astype(np.uint16)
    expected = np.rint(low * (255 / 4095))
    assert (loaded(site(*[png(low, bits=12)] * 2, name="low"))[0] == expected).all()
    # as the standard has it: scaled up, with the low bits without meaning
    assert np.abs(loaded(site(*[png(low << 4, bits=12)] * 2, name="high"))[0] - expected).max() <= 1
    with pytest.raises(FedstillError, match="with room up to 65535"):
        loaded(site(*[png(low)] * 2, name="silent"))


def test_16_bit_colours_keep_both_bytes(site):
    values = np.stack([RAMP, RAMP[::-1], RAMP.T], axis=-1).astype(np.uint16) * 65
    expected = np.rint(values * (255 / 4095))
    assert (loaded(site(*[png(values, 2, bits=12)] * 2, name="png"))[0] == expected).all()
    assert (loaded(site(*[png(values * 16, 2)] * 2, name="wide"))[0] == np.rint(values * (16 * 255 / 65535))).all()
    grey = loaded(site(*[png(values, 2, bits=12)] * 2, name="grey"), channels=1)[0]
    assert np.abs(grey - expected @ [0.299, 0.587, 0.114]).max() <= 1


@pytest.mark.parametrize("kind", [4, 6])
def test_12_bits_beside_an_alpha_of_16_are_not_lost(site, kind):
    values = RAMP.astype(np.uint16) * 65
    opaque = np.full_like(values, 65535)
    planes = np.stack([*[values] * (kind - 3 if kind == 6 else 1), opaque], axis=-1)
    with pytest.raises(FedstillError, match=r"set data.range, such as \[0, 4095\]"):
        loaded(site(*[png(planes, kind)] * 2, name="silent"))
    expected = np.rint(values * (255 / 4095))
    assert (loaded(site(*[png(planes, kind)] * 2, name="said"), channels=1, range=(0, 4095))[0] == expected).all()
    assert (loaded(site(*[png(planes, kind, bits=12)] * 2, name="bits"), channels=1)[0] == expected).all()


@pytest.mark.parametrize("kind", [4, 6])
@pytest.mark.parametrize(("ink", "paper"), [(0, 255), (65535, 0)])
def test_ink_of_16_bits_on_nothing(site, kind, ink, paper):
    planes = np.full((6, 6, 2 if kind == 4 else 4), ink, dtype=np.uint16)
    planes[:, :3, -1], planes[:, 3:, -1] = 0, 65535
    found = loaded(site(*[png(planes, kind)] * 2, name="ink"), channels=1)[0]
    assert (loaded(site(*[png(planes, kind)] * 2, name="said"), channels=1, range=(0, 65535))[0] == found).all()
    assert (found[:, :3] == paper).all()
    assert (found[:, 3:] == ink // 257).all()


def test_white_is_zero_in_16_bits(site):
    values = (RAMP * 1040).astype(np.uint16)
    folder = site(*[(Image.fromarray(values), tags(_262=0))] * 2, ending="tif")
    assert Image.open(folder / "0.tif").tag_v2[262] == 0
    assert (loaded(folder)[0] == np.rint(255 - values * (255 / 65535))).all()


def test_deep_images_are_resized_before_they_are_rounded(site):
    values = np.array([[0, 1], [1, 0]], dtype=np.int32)
    assert loaded(site(*[Image.fromarray(values)] * 2, ending="tif"), range=(0, 255), image_size=1)[0].tolist() == [[0]]
    values = np.array([[0, 3], [0, 3]], dtype=np.int32)
    assert loaded(site(*[Image.fromarray(values)] * 2, ending="tif", name="b"), range=(0, 3), image_size=1)[0].tolist() == [[128]]


# -- transparency ----------------------------------------------------------------------------------------------------------------


def inked(ink, mode="RGBA"):
    """A stroke of ink on nothing."""
    image = Image.new("LA", (6, 6), (ink, 0))
    image.paste((ink, 255), (2, 0, 4, 6))
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize(("ink", "paper"), [(0, 255), (60, 255), (255, 0), (230, 0)])
def test_ink_on_nothing_stays_visible(site, mode, ink, paper):
    image = loaded(site(*[inked(ink, mode)] * 2), channels=1)[0]
    assert (image[:, 2:4] == ink).all()
    assert (image[:, :2] == paper).all()


def test_half_transparent_and_opaque_images(site):
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    opaque = Image.new("RGBA", (2, 2), (10, 20, 30, 255))
    found = {tuple(image[0, 0]) for image in loaded(site(half, half, opaque, opaque, opaque))}
    assert found == {(127, 127, 127), (10, 20, 30)}


def test_a_palette_with_a_transparent_colour(site):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([200, 0, 0, 0, 0, 0])
    image.putpixel((1, 1), 1)
    found = loaded(site(*[(image, {"transparency": 0})] * 2))[0]
    assert found[1, 1].tolist() == [0, 0, 0]
    assert found[0, 0].tolist() == [255, 255, 255]  # not the red that nobody sees
    gif = loaded(site(*[(image, {"transparency": 0})] * 2, ending="gif", name="gif"))[0]
    assert gif[0, 0].tolist() == [255, 255, 255]


def test_a_grey_that_stands_for_nothing(site):
    image = Image.new("L", (4, 4), 7)
    image.putpixel((0, 0), 0)
    found = loaded(site(*[(image, {"transparency": 7})] * 2))[0]
    assert (found[0, 0], found[1, 1]) == (0, 255)


# -- other modes -----------------------------------------------------------------------------------------------------------------


def test_palettes_bits_and_colour_spaces(site):
    red = Image.new("RGB", (16, 16), (250, 20, 30))
    for mode, ending, options in [
        ("P", "png", {}),
        ("CMYK", "tif", {}),
        ("CMYK", "jpg", {"quality": 98}),  # inverted, as Adobe has them
        ("YCbCr", "jpg", {"quality": 98}),
        ("YCbCr", "tif", {}),
        ("RGB", "webp", {"quality": 98}),
        ("RGB", "bmp", {}),
        ("RGB", "ppm", {}),
        ("RGB", "tga", {}),
        ("RGB", "jp2", {}),
    ]:
        image = red.quantize() if mode == "P" else red.convert(mode)
        folder = site(*[(image, options)] * 2, ending=ending, name=f"{mode}-{ending}")
        assert Image.open(folder / f"0.{ending}").mode in (mode, "RGB", "P"), mode
        assert np.abs(loaded(folder)[0].astype(int) - [250, 20, 30]).max() <= 6, (mode, ending)
    bits = Image.fromarray(np.eye(8, dtype=bool))
    for ending in ("png", "tif", "pbm"):
        assert (loaded(site(bits, bits, ending=ending, name=f"bits-{ending}"))[0] == 255 * np.eye(8)).all()


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_exif_rotation_is_honoured(site, ending, orientation):
    upright = np.zeros((16, 32), dtype=np.uint8)
    upright[:, :16] = 200  # light on the left
    turns = {1: 0, 3: 2, 6: 1, 8: -1}[orientation]  # how the camera was held
    stored = Image.fromarray(np.ascontiguousarray(np.rot90(upright, turns)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    folder = site(*[(stored.convert("RGB"), {"exif": exif})] * 2, ending=ending)
    found = loaded(folder)[0]
    assert found.shape == (16, 32, 3)
    assert np.abs(found[..., 0].astype(int) - upright).max() <= 60
    assert found[:, 4].mean() > 150 > 60 > found[:, 28].mean()


def test_exif_rotation_of_deep_images(site):
    values = (RAMP * 1040).astype(np.uint16)[:4]
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        image = Image.fromarray(values)
        folder = site(*[(image, {"exif": exif})] * 2, name=f"png{orientation}")
        other = site(*[(image, tags(_274=orientation))] * 2, ending="tif", name=f"tif{orientation}")
        found = loaded(folder)[0]
        assert found.shape == ((4, 8) if orientation < 5 else (8, 4))
        assert (found == loaded(other)[0]).all(), orientation
        grey = site(*[(Image.fromarray(BYTES[:4]), tags(_274=orientation))] * 2, ending="tif", name=f"grey{orientation}")
        assert (np.argsort(loaded(grey)[0].ravel()) == np.argsort(found.ravel())).all(), orientation


def test_a_tiff_of_several_pages_is_refused_and_a_thumbnail_is_none(site):
    page = Image.fromarray(BYTES)
    folder = site(*[(page, {"save_all": True, "append_images": [page, page]})] * 2, ending="tif")
    with pytest.raises(FedstillError, match="0.tif' cannot be decoded: it holds 3 pages"):
        loaded(folder)
    small = page.resize((4, 4))
    small.encoderinfo = tags(_254=1)
    folder = site(*[(page, {"save_all": True, "append_images": [small]})] * 2, ending="tif", name="thumb")
    assert Image.open(folder / "0.tif").n_frames == 2
    assert (loaded(folder)[0] == BYTES).all()


def test_tables_of_images_are_looked_at_too(tmp_path):
    import datasets

    rows = {"image": [Image.fromarray(BYTES), Image.fromarray(COLOURS)] * 3, "label": [0, 1] * 3}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    domain = load_domains(["rows"], root=tmp_path, cache=tmp_path / "cache")["rows"]
    assert domain.train.x.shape[1:] == (3, 8, 8)


def test_eight_bits_are_untouched_by_a_range(site):
    folder = site(*[Image.fromarray(BYTES)] * 2)
    assert (loaded(folder, range=(0, 4095))[0] == BYTES).all()


# -- unreadable ------------------------------------------------------------------------------------------------------------------


def damaged():
    """A PNG of which the second half is lost."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()[: len(file.getvalue()) // 2]


def labelled_site(tmp_path, bad=3):
    for label, name in enumerate(("cat", "dog")):
        folder = tmp_path / "pets" / name
        folder.mkdir(parents=True)
        for i in range(20):
            Image.new("L", (6, 6), 100 * label + i).save(folder / f"{i:02}.png")
        for i in range(bad):
            (folder / f"{7 * i:02}.png").write_bytes([b"", damaged(), b"no image"][i % 3])
    return tmp_path / "pets"


def test_a_damaged_image_is_named(tmp_path):
    folder = labelled_site(tmp_path, bad=1)
    with pytest.raises(FedstillError, match=r"pets/cat/00.png' cannot be decoded: .*data.unreadable = 'skip'") as caught:
        load_domain(str(folder), cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_damaged_images_are_left_out_counted_and_named(tmp_path):
    folder = labelled_site(tmp_path)
    for _ in range(2):  # decoded, then from the cache
        domain = load_domains(
            {"pets": str(folder)}, cache=tmp_path / "cache", reading=Reading(unreadable="skip")
        )["pets"]  # fmt: skip
        assert len(domain.train) + len(domain.test) == 34
        for part in (domain.train, domain.test):
            assert ((part.x[:, 0, 0, 0] >= 100) == (part.y == 1)).all()  # labels stay with their images
        assert len(domain.notes) == 1
        assert domain.notes[0].startswith("6 images of 'pets' left out as undecodable:")
        assert "cat/07.png" in domain.notes[0]
    with pytest.raises(FedstillError, match="cat/00.png' cannot be decoded"):  # also where the cache knows them
        load_domain(str(folder), cache=tmp_path / "cache")


def test_at_most_ten_names(tmp_path, site):
    folder = site(*[Image.fromarray(BYTES)] * 3, *[damaged()] * 12)
    note = load_domain(str(folder), cache=tmp_path / "cache", reading=Reading(unreadable="skip")).notes[0]
    assert note.count(".png") == 10
    assert note.endswith("and 2 more")


def test_nothing_readable_is_an_error(tmp_path, site):
    with pytest.raises(FedstillError, match="none of the images of .* can be decoded"):
        load_domain(str(site(damaged(), b"")), cache=tmp_path / "cache", reading=Reading(unreadable="skip"))


def test_a_damaged_row_of_a_table_is_named(tmp_path):
    import datasets

    good = io.BytesIO()
    Image.fromarray(BYTES).save(good, "PNG")
    cells = [{"bytes": good.getvalue(), "path": None} for _ in range(10)]
    cells[4], cells[7] = {"bytes": damaged(), "path": None}, None
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": cells, "label": [None] + [i % 2 for i in range(9)]}  # the first has no label
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(FedstillError, match=r"the image in row [47] of 'rows' cannot be decoded"):
        load_domain("rows", root=tmp_path, cache=tmp_path / "cache")
    domain = load_domain("rows", root=tmp_path, cache=tmp_path / "cache", reading=Reading(unreadable="skip"))
    assert len(domain.train) + len(domain.test) == 7
    assert "row 4" in domain.notes[0]
    assert "row 7" in domain.notes[0]
