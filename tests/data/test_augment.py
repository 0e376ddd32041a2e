import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.data.augment import augment


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("flip", [True, False])
def test_every_output_is_a_window_of_the_padded_image_or_its_mirror(dtype, flip):
    x = torch.randint(1, 255, (40, 2, 5, 4), generator=stream()).to(dtype)
    out = augment(x, flip, 2, stream(1))
    assert out.shape == x.shape
    assert out.dtype == dtype
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    kinds = set()
    for i in range(40):
        found = [
            (mirrored, top, left)
            for mirrored, image in ((False, padded[i]), (True, padded[i].flip(-1)))
            for top in range(5)
            for left in range(5)
            if image[:, top : top + 5, left : left + 4].equal(out[i])
        ]
        assert found
        kinds.add(found[0])
    assert len({corner for _, *corner in map(list, kinds) for corner in [tuple(corner)]}) > 10
    assert {mirrored for mirrored, *_ in kinds} == ({True, False} if flip else {False})


def test_half_of_the_images_are_mirrored():
    x = torch.arange(3, dtype=torch.uint8).expand(2000, 1, 1, 3)
    share = augment(x, True, 0, stream())[:, 0, 0, 0].eq(2).float().mean()
    assert share == pytest.approx(0.5, abs=0.05)


def test_the_generator_decides():
    x = torch.randint(0, 255, (8, 3, 6, 6), dtype=torch.uint8)
    assert augment(x, True, 1, stream(3)).equal(augment(x, True, 1, stream(3)))
    assert not augment(x, True, 1, stream(3)).equal(augment(x, True, 1, stream(4)))


def test_text_is_refused():
    with pytest.raises(FedstillError, match="images"):
        augment(torch.zeros(2, 8, dtype=torch.int32), True, 0, stream())
