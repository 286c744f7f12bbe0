"""Checkpoints in the published layout: descriptors, whitenings, and files that are something else."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("PIL", reason="pip install 'gqe[extract]'")
from PIL import Image

from extraction.published import MEAN, STD, checkpoint, constant, described, random_state, state_dict
from gqe import InputError
from gqe.extraction import load_whitening, open_network
from gqe.extraction.checkpoints import read_checkpoint, read_learned_whitening
from gqe.extraction.resnet import GeM

SCALES = (1, math.sqrt(2), 1 / math.sqrt(2))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


def normalised(image: Image.Image) -> Tensor:
    pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1).float() / 255
    return ((pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None])[None]


@pytest.fixture(scope="module")
def resnet101(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    state = random_state("resnet101")
    path = tmp_path_factory.mktemp("networks") / "resnet101.pth"
    torch.save(checkpoint(state, "resnet101"), path)
    return path, state


def test_descriptors_of_the_published_network(resnet101: tuple[Path, dict[str, Tensor]]) -> None:
    path, state = resnet101
    network = open_network(path, device="cpu")
    assert network.dimension == 2048
    images = [picture(64, 48), picture(64, 48, seed=1), picture(40, 70)]
    found = network(images)
    for image, descriptor in zip(images, found, strict=True):
        whole = normalised(image)
        mean = torch.zeros(2048)
        for scale in SCALES:
            scaled = whole
            if scale != 1:
                scaled = F.interpolate(whole, scale_factor=scale, mode="bilinear", align_corners=False)
            mean += described(state, "resnet101", scaled) / 3
        np.testing.assert_allclose(descriptor, mean / mean.norm(), atol=1e-5)
    # The pictures differ by much more than the tolerance.
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_size_scales_and_tiny_pictures(resnet101: tuple[Path, dict[str, Tensor]]) -> None:
    path, state = resnet101
    network = open_network(path, size=48, scales=[1], device="cpu")
    image = picture(90, 60)
    small = image.resize((48, 32), Image.Resampling.LANCZOS)
    expected = described(state, "resnet101", normalised(small))
    np.testing.assert_allclose(network([image])[0], expected, atol=1e-5)
    assert np.isfinite(open_network(path, device="cpu")([Image.new("RGB", (1, 1))])).all()


def test_without_whitening_scales_are_joined_by_the_power_of_the_pooling(tmp_path: Path) -> None:
    state = random_state("resnet50", whitened=None)
    torch.save(checkpoint(state, "resnet50"), tmp_path / "net.pth")
    image, p = picture(48, 48), 2.9
    single = [
        described(state, "resnet50", normalised(image)),
        described(state, "resnet50", F.interpolate(normalised(image), scale_factor=0.5, mode="bilinear")),
    ]
    for power, exponent in (("gem", p), (None, 1.0), (2.0, 2.0)):
        network = open_network(tmp_path / "net.pth", scales=[1, 0.5], power=power, device="cpu")
        joined = ((single[0] ** exponent + single[1] ** exponent) / 2) ** (1 / exponent)
        np.testing.assert_allclose(network([image])[0], joined / joined.norm(), atol=1e-5)


def test_other_poolings_local_whitening_and_shorter_descriptors(tmp_path: Path) -> None:
    from extraction.published import features

    state = random_state("resnet50", whitened=32)
    del state["pool.p"]
    generator = torch.Generator().manual_seed(1)
    state["lwhiten.weight"] = torch.randn(2048, 2048, generator=generator) / 45
    state["lwhiten.bias"] = torch.randn(2048, generator=generator) / 45
    image = picture(64, 64)
    maps = features(state, "resnet50", normalised(image))[0].flatten(1)
    maps = state["lwhiten.weight"] @ maps + state["lwhiten.bias"][:, None]
    for pooling, pooled in (("mac", maps.amax(dim=1)), ("spoc", maps.mean(dim=1))):
        torch.save(checkpoint(state, "resnet50", pooling=pooling, local_whitening=True), tmp_path / "net.pth")
        white = state["whiten.weight"] @ (pooled / pooled.norm()) + state["whiten.bias"]
        network = open_network(tmp_path / "net.pth", scales=[1], device="cpu")
        assert network.dimension == 32
        np.testing.assert_allclose(network([image])[0], white / white.norm(), atol=1e-5)


def test_older_files_and_files_of_training(tmp_path: Path) -> None:
    state = state_dict("resnet50")
    older = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    content = checkpoint(older, "resnet50") | {"epoch": 3, "optimizer": {"state": {}}, "min_loss": 0.5}
    del content["meta"]["local_whitening"], content["meta"]["regional"]
    torch.save(content, tmp_path / "net.pth", _use_new_zipfile_serialization=False)  # as torch wrote in 2018
    read = read_checkpoint(tmp_path / "net.pth")
    assert (read.pooling, read.dimension, read.mean) == ("gem", 2048, tuple(MEAN))
    assert float(read.net.pool.p) == pytest.approx(2.9)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/gqe-pickle-bomb-went-off",)


def without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["state_dict"].pop(key)


def put(part: str, key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda content: content[part].update({key: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("features.4.0.conv1.weight"), r"'features.4.0.conv1.weight' is missing"),
        (without("features.1.running_var"), r"'features.1.running_var' is missing"),
        (without("whiten.bias"), r"'whiten.bias' is missing"),
        (without("whiten.weight"), r"'whiten.weight' is missing"),
        (without("pool.p"), r"'pool.p' is missing"),
        (put("state_dict", "features.9.weight", torch.zeros(1)), "'features.9.weight' belongs to no part"),
        (put("state_dict", "features.0.weight", constant(64, 3, 5, 5)), r"\(64, 3, 5, 5\) instead of"),
        (put("state_dict", "features.0.weight", constant(64, 3, 7, 7) * math.nan), "not finite"),
        (put("state_dict", "features.0.weight", [1, 2]), "is no tensor"),
        (put("state_dict", "pool.p", torch.tensor([-1.0])), "'pool.p'"),
        (put("meta", "architecture", "vgg16"), "architecture 'vgg16' is unknown; use resnet50"),
        (put("meta", "architecture", ["resnet50"]), "architecture .* is unknown"),
        (put("meta", "pooling", "rmac"), "pooling 'rmac' is unknown"),
        (put("meta", "regional", True), "regional pooling is not supported"),
        (put("meta", "mean", [1, 2]), "'mean' is not three numbers"),
        (put("meta", "std", [1, 0, 1]), "'std' is not positive"),
        (lambda content: content.pop("meta"), "no 'meta' and 'state_dict'"),
        (lambda content: content.update(state_dict=3), "no 'meta' and 'state_dict'"),
        (put("meta", "note", Bomb()), "without running code"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str) -> None:
    content = checkpoint(state_dict("resnet50"), "resnet50")
    change(content)
    torch.save(content, tmp_path / "net.pth")
    with pytest.raises(InputError, match=words) as caught:
        read_checkpoint(tmp_path / "net.pth")
    assert str(caught.value).startswith(str(tmp_path / "net.pth"))
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400
    assert not Path("/tmp/gqe-pickle-bomb-went-off").exists()


def test_foreign_files(tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "net.pth"
    for content in (b"a letter", b"", pickle.dumps(Bomb()), pickle.dumps({"meta": 1}), b"PK\3\4" + bytes(90)):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"net\.pth: ") as caught:
            read_checkpoint(path)
        assert len(str(caught.value).splitlines()) == 1
    torch.save(torch.zeros(3), path)
    with pytest.raises(InputError, match="holds a Tensor"):
        read_checkpoint(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not a checkpoint"):
        read_checkpoint(path)
    assert not Path("/tmp/gqe-pickle-bomb-went-off").exists()
    with pytest.raises(InputError, match="no such file"):
        read_checkpoint(tmp_path / "absent.pth")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 8}, "size"),
        ({"scales": []}, "scales"),
        ({"scales": [0]}, "scales"),
        ({"scales": [math.nan]}, "scales"),
        ({"batch_size": 0}, "batch_size"),
        ({"power": 2.0}, "negative numbers; leave power at 1"),
        ({"power": "gem"}, "negative numbers"),
        ({"power": "many"}, "neither a positive number nor 'gem'"),
        ({"device": "moon"}, "device"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    torch.save(checkpoint(state_dict("resnet50"), "resnet50"), tmp_path / "net.pth")
    with pytest.raises(InputError, match=words):
        open_network(tmp_path / "net.pth", **settings)


def test_whitenings_learned_afterwards(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    learned = {
        scale: {"m": rng.normal(size=(6, 1)).astype(kind), "P": rng.normal(size=(4, 6)).astype(kind)}
        for scale, kind in (("ss", np.float64), ("ms", np.float32))
    }
    content = checkpoint({}, "resnet50", Lw={"retrieval-SfM-120k": learned, "other": learned})
    torch.save(content, tmp_path / "net.pth")
    x = rng.normal(size=(5, 6)).astype(np.float32)
    for several, key in ((False, "ss"), (True, "ms")):
        read = load_whitening(f"{tmp_path}/net.pth:retrieval-SfM-120k", several_scales=several)
        expected = (learned[key]["P"] @ (x.T - learned[key]["m"])).T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(read.apply(x), expected, atol=1e-5)
    for name, words in (("net.pth", "write .*:NAME"), ("net.pth:none", "no whitening 'none'")):
        with pytest.raises(InputError, match=words):
            load_whitening(tmp_path / name)
    torch.save(learned["ms"], tmp_path / "alone.pth")
    np.testing.assert_allclose(load_whitening(tmp_path / "alone.pth").mean, learned["ms"]["m"][:, 0])
    for wrong, words in (
        ({"m": np.zeros(3), "P": np.zeros((2, 4))}, "do not fit"),
        ({"m": "a", "P": 1}, "no arrays"),
        ({"meta": {}}, "holds no learned whitening"),
        ({"m": np.array([Bomb()]), "P": np.zeros((1, 1))}, "without running code"),
    ):
        torch.save(wrong, tmp_path / "wrong.pth")
        with pytest.raises(InputError, match=words):
            load_whitening(tmp_path / "wrong.pth")


def test_a_compressed_archive_is_refused(tmp_path):
    torch.save({"m": torch.zeros(3, 1), "P": torch.eye(3)}, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as stored,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for info in stored.infolist():
            packed.writestr(info.filename, stored.read(info))
    assert read_learned_whitening(tmp_path / "a.pth", None, several_scales=False)
    with pytest.raises(InputError, match="is a compressed archive"):
        read_learned_whitening(tmp_path / "b.pth", None, several_scales=False)


def test_a_part_of_several_archives_is_refused(tmp_path):
    locator = b"PK\x06\x07" + bytes([1, 0, 0, 0]) + bytes(8) + bytes([2, 0, 0, 0])  # the second of two disks
    (tmp_path / "a.pth").write_bytes(bytes(64) + locator + b"PK\x05\x06" + bytes(18))
    with pytest.raises(InputError, match=r"a\.pth"):
        read_learned_whitening(tmp_path / "a.pth", None, several_scales=False)


def test_one_number_repeated_without_end_is_refused(tmp_path):
    endless = torch.zeros(1).expand(1 << 40)
    torch.save({"m": endless, "P": endless[None].expand(1 << 10, -1)}, tmp_path / "a.pth")
    with pytest.raises(InputError, match="promises"):
        read_learned_whitening(tmp_path / "a.pth", None, several_scales=False)
    meta = {"architecture": "resnet50", "pooling": "gem", "whitening": True}
    weights = {"pool.p": torch.ones(1), "whiten.weight": endless.reshape(1 << 20, 1 << 20)}
    torch.save({"meta": meta, "state_dict": weights}, tmp_path / "b.pth")
    with pytest.raises(InputError, match="has 1099511627776 numbers"):
        read_checkpoint(tmp_path / "b.pth")


def test_pooling_matches_the_formula() -> None:
    features = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    pooled = GeM(p=3.0)(features)
    for n in range(2):
        for c in range(3):
            values = [float(v) ** 3 for v in features[n, c].flatten()]
            assert abs(float(pooled[n, c]) - (sum(values) / len(values)) ** (1 / 3)) < 1e-5


def test_large_powers_approach_the_maximum() -> None:
    features = torch.tensor([[[[0.1, 0.5], [0.9, 0.2]]]])
    assert abs(float(GeM(p=60.0)(features)) - 0.9) < 0.03


def test_nothing_seen_gives_the_smallest_value() -> None:
    pooled = GeM()(torch.zeros(1, 2, 3, 3))
    torch.testing.assert_close(pooled, torch.full((1, 2), 1e-6))
