"""Networks of every kind by name or file, and ONNX models described by a TOML file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from extraction.models import WEIGHTS, TensorProto, expected, noise, write_model
from gqe import InputError
from gqe.extraction import open_network


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_an_onnx_model_gets_what_its_description_says(tmp_path: Path) -> None:
    path = write_model(tmp_path / "net.onnx")
    (tmp_path / "net.toml").write_text(
        'size = [12, 9]\nresample = "bicubic"\ncolors = "BGR"\n'
        "mean = [0.1, 0.2, 0.3]\nstd = [0.5, 0.6, 0.7]\n"
    )
    network = open_network(path, threads=1)
    assert (network.dimension, network.name) == (8, str(path))
    images = [noise(0), noise(1, 40, 30)]
    for image, found in zip(images, network(images), strict=True):
        pixels = np.asarray(image.resize((12, 9), 3)).astype(np.float64)[:, :, ::-1] / 255
        maps = expected((pixels - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7])
        np.testing.assert_allclose(found, unit(maps.mean(axis=(1, 2))), atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "max", "gem"])
def test_maps_are_pooled(tmp_path: Path, pool: str) -> None:
    path = write_model(tmp_path / "net.onnx", pooled=False)
    (tmp_path / "net.toml").write_text(f'size = 12\npool = "{pool}"\n')
    maps = expected(np.asarray(noise(0).resize((12, 12), 2)) / 255)
    pooled = {
        "mean": maps.mean(axis=(1, 2)),
        "max": maps.max(axis=(1, 2)),
        "gem": (maps.clip(1e-6) ** 3).mean(axis=(1, 2)) ** (1 / 3),
    }
    np.testing.assert_allclose(open_network(path)([noise(0)])[0], unit(pooled[pool]), atol=1e-5)


def test_bytes_channels_last_and_a_fixed_batch(tmp_path: Path) -> None:
    path = write_model(tmp_path / "net.onnx", batch=4, kind=TensorProto.UINT8, nhwc=True)
    (tmp_path / "net.toml").write_text(
        'size = 16\nlayout = "NHWC"\nresize = "fit"\nstep = 8\noutput = "pooled"'
    )
    network = open_network(path)
    assert network.batch_size == 4
    images = [noise(seed, 32, 16 if seed % 2 else 32) for seed in range(7)]
    for image, found in zip(images, network(images), strict=True):
        small = image.resize((16, 8 if image.height == 16 else 16), 3)
        maps = expected(np.asarray(small).astype(np.float64))
        np.testing.assert_allclose(found, unit(maps.mean(axis=(1, 2))), atol=1e-5)


def test_the_fingerprint_follows_model_and_description(tmp_path: Path) -> None:
    path = write_model(tmp_path / "net.onnx")
    (tmp_path / "net.toml").write_text("size = 12")
    first = open_network(path).fingerprint
    assert open_network(path).fingerprint == first
    (tmp_path / "net.toml").write_text("size = 12\nmean = [0.5, 0.5, 0.5]")
    assert open_network(path).fingerprint != first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, r"net\.toml: no such file"),
        ("", "'size' is missing"),
        ("size = ", "not a readable TOML file"),
        ("size = 0", "size 0 is neither"),
        ("size = [1, 2, 3]", "is neither"),
        ("size = true", "is neither"),
        ("size = 12\nsides = 3", "'sides' is unknown; there are size, resize"),
        ('size = 12\nresize = "zoom"', "resize 'zoom' is unknown; use stretch"),
        ("size = 12\nmean = [1, 2]", "mean .* is not three numbers"),
        ("size = 12\nmean = [1, 2, nan]", "mean .* is not three numbers"),
        ("size = 12\nstd = [1, 0, 1]", "std .* is not three numbers"),
        ("size = 12\ndivide = 0", "divide 0 is not a number from"),
        ('size = 12\nresize = "crop"\ncrop_share = 2', "crop_share 2"),
        ('size = 12\nlayout = "CHWN"', "layout"),
        ("size = 12\noutput = 3", "output 3 is not a name"),
        ('size = 12\noutput = "other"', "output 'other' is unknown; there is pooled, features"),
        ('size = 12\noutput = "features"', "set pool in its .toml"),
        ('size = 12\noutput = "features"\npool = "first"', "set pool in its .toml"),
        ("size = 2", "cannot run on"),
        ('size = 12\nlayout = "NHWC"', "cannot run on"),
    ],
)
def test_descriptions_that_do_not_fit(tmp_path: Path, text: str | None, words: str) -> None:
    path = write_model(tmp_path / "net.onnx")
    if text is not None:
        (tmp_path / "net.toml").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        open_network(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "net.toml").write_text("size = 12")
    (tmp_path / "net.onnx").write_text("a letter")
    with pytest.raises(InputError, match=r"net\.onnx: not a usable network"):
        open_network(tmp_path / "net.onnx")


@pytest.mark.parametrize("name", ["", "lite1", "net.txt", "folder/net"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(InputError, match="no such network; use lite0"):
        open_network(name)


def test_settings_that_a_network_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="scales: lite0 has no such setting"):
        open_network("lite0", scales=[1.0])
    with pytest.raises(InputError, match=r"size: .*has no such setting"):
        open_network(tmp_path / "net.onnx", size=64)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=f"{library} is not installed; pip install {library}"):
        open_network(f"{library}:resnet18")


class Net(torch.nn.Module):
    """Stands for a model of a library that need not be installed here."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Conv2d(3, 8, 3, bias=False)
        self.body.weight.data = torch.tensor(WEIGHTS)
        self.fc = torch.nn.Linear(8, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).mean(dim=(2, 3)))


def without_classes() -> Net:
    net = Net()
    net.fc = torch.nn.Identity()  # type: ignore[assignment]
    return net


def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"input_size": (3, 10, 14), "mean": (0.5,) * 3, "std": (0.2,) * 3, "crop_pct": 0.5}
    timm, data = ModuleType("timm"), ModuleType("timm.data")
    timm.create_model = lambda name, pretrained, num_classes: {"tiny": without_classes}[name]()  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda net: config | {"interpolation": "bicubic"}  # type: ignore[attr-defined]
    vision, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    preset = SimpleNamespace(
        crop_size=[12],
        resize_size=[24],
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
        interpolation=SimpleNamespace(value="bilinear"),
    )
    default = SimpleNamespace(transforms=lambda: preset)
    models.get_model_weights = lambda name: SimpleNamespace(DEFAULT=default)  # type: ignore[attr-defined]
    models.get_model = lambda name, weights: Net()  # type: ignore[attr-defined]
    for module in (timm, data, vision, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_models_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries(monkeypatch)
    image = noise(0, 28, 20)
    timm = open_network("timm:tiny", device="cpu")
    assert (timm.dimension, timm.name) == (8, "timm:tiny")
    # Half of it is kept: twice 14 x 10, which is its own size, then the middle.
    middle = np.asarray(image)[5:15, 7:21] / 255
    maps = expected((middle - 0.5) / 0.2)
    np.testing.assert_allclose(timm([image])[0], unit(maps.mean(axis=(1, 2))), atol=1e-5)
    vision = open_network("torchvision:tiny", device="cpu")
    maps = expected((np.asarray(noise(0, 24, 24))[6:18, 6:18] / 255 - 0.5) / 0.2)
    np.testing.assert_allclose(vision([noise(0, 24, 24)])[0], unit(maps.mean(axis=(1, 2))), atol=1e-5)
    with pytest.raises(InputError, match="timm:other: cannot be loaded"):
        open_network("timm:other")


def test_batches_hold_pictures_of_one_shape_and_few_wait() -> None:
    from gqe.extraction.network import batches

    taken = 0

    def pictures() -> Iterator[tuple[int, np.ndarray]]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield number, np.full((1, 1 + number % 50, 3), number, np.uint8)

    seen: list[int] = []
    for keys, pixels in batches(pictures(), 3):
        assert len(keys) <= 3
        assert pixels.shape == (len(keys), 1, 1 + keys[0] % 50, 3)
        assert pixels[:, 0, 0, 0].tolist() == keys
        seen += keys
        assert taken - len(seen) < 24
    assert sorted(seen) == list(range(200))


@pytest.mark.parametrize("name", [b"pictures", b"pooled", b"weights"])
def test_names_in_a_model_that_are_no_text_are_refused(tmp_path, name):
    path = write_model(tmp_path / "a.onnx")
    path.with_suffix(".toml").write_text("size = 8\n")
    content = path.read_bytes()
    path.write_bytes(content.replace(name, b"\xc9" + name[1:]))
    with suppress(InputError):  # and nothing else; a name that nobody looks at may stay
        assert open_network(path, threads=1).dimension == 8
