from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import official_layouts as layouts
from web_server import Site, serving

MAT = "roxford5k_resnet_rsfm120k_gem.mat"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    files = {
        "/roxford5k/gnd_roxford5k.pkl": layouts.truth_bytes(),
        f"/roxford5k/{MAT}": layouts.mat_bytes(),
        "/roxford5k/oxbuild_images-v1.tgz": layouts.tar_bytes(
            {f"{name}.jpg": os.urandom(20_000) for name in layouts.NAMES + layouts.QUERIES}
        ),
        "/rsfm120k/retrieval-SfM-120k.pkl": layouts.sfm_bytes(),
        "/rsfm120k/retrieval-SfM-120k-whiten.pkl": pickle.dumps(layouts.sfm()["val"]),
    }
    with serving(files=files) as running:
        monkeypatch.setenv("GQE_DATA_MIRROR", running.address)
        monkeypatch.setenv("GQE_DATA", str(tmp_path / "data"))
        yield running


def one_line(ran, *texts: str) -> None:
    assert ran.status == 2
    assert len(ran.err.strip().splitlines()) == 1
    for text in texts:
        assert text in ran.err


def test_get_then_evaluate(gqe, site: Site, tmp_path: Path) -> None:
    ran = gqe("data", "get", "roxford5k")
    assert ran.status == 0, ran.err
    assert "gnd_roxford5k.pkl" in ran.out
    assert "to fetch" in ran.out
    assert "free there" in ran.out
    assert "Flickr" in ran.out
    ran = gqe("evaluate", "roxford5k", "--methods", "none,aqe:k=2", "--json")
    assert json.loads(ran.out)["benchmark"] == "roxford5k"
    assert json.loads(gqe("data", "describe", "roxford5k", "--json").out)["database"] == len(layouts.NAMES)
    requests = len(site.gets())
    again = gqe("data", "get", "roxford5k", "--check", "--json")
    assert json.loads(again.out)["datasets"][0]["fetched"] == []
    assert len(site.gets()) == requests


def test_list_and_path(gqe, site: Site, tmp_path: Path) -> None:
    assert gqe("data", "path").out.strip() == str(tmp_path / "data")
    assert gqe("data", "path", "roxford5k", "--root", tmp_path).out.strip() == str(tmp_path / "roxford5k")

    def here() -> str:
        rows = json.loads(gqe("data", "list", "--json").out)["datasets"]
        return next(row["here"] for row in rows if row["name"] == "roxford5k")

    assert here() == "no"
    gqe("data", "get", "roxford5k")
    assert here() == "truth, descriptors"
    assert "truth, descriptors" in gqe("data", "list").out
    (tmp_path / "data" / "roxford5k" / "gnd_roxford5k.pkl").write_bytes(b"mine")
    assert here() == "changed"
    assert site.seen != []


def test_pictures_and_their_list(gqe, site: Site, tmp_path: Path) -> None:
    assert gqe("data", "get", "roxford5k", "--pictures", "--yes").status == 0
    assert len(list((tmp_path / "data" / "roxford5k" / "jpg").iterdir())) == 15
    lines = gqe("data", "pictures", "roxford5k").out.splitlines()
    assert lines == [f"jpg/{name}.jpg" for name in layouts.NAMES]
    gqe("data", "pictures", "roxford5k-queries", "-o", tmp_path / "queries.tsv")
    first = (tmp_path / "queries.tsv").read_text().splitlines()[0]
    assert first == f"jpg/{layouts.QUERIES[0]}.jpg\t136.5\t34.1\t648.5\t955.7"


def test_a_large_download_asks_first(gqe, site: Site, tmp_path: Path) -> None:
    site.claims["/roxford5k/oxbuild_images-v1.tgz"] = 1_500_000_000
    one_line(gqe("data", "get", "roxford5k", "--pictures"), "1.5 GB", "--yes")
    assert site.gets() == []
    site.claims["/roxford5k/oxbuild_images-v1.tgz"] = 10**18
    one_line(gqe("data", "get", "roxford5k", "--pictures", "--yes"), "are free", "--root")
    assert site.gets() == []
    assert not (tmp_path / "data" / "roxford5k" / "gnd_roxford5k.pkl").exists()


def test_rsfm_by_name(gqe, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gqe("data", "get", "rsfm120k").status == 0
    monkeypatch.chdir(tmp_path)
    one_line(gqe("tune", "aqe", "--val", "rsfm120k-val"), "rsfm120k-val@FILE")
    splits = {"train": layouts.unit(20, seed=3), "val": layouts.unit(12, seed=4)}
    Path("gem.pkl").write_bytes(pickle.dumps(splits))
    ran = gqe("tune", "aqe", "--val", "rsfm120k-val@gem.pkl", "--json")
    assert json.loads(ran.out)["validation"] == "rsfm120k-val@gem.pkl"
    arguments = ["--val", "rsfm120k-val@gem.pkl", "--preset", "small", "--steps", "1", "--k", "2"]
    ran = gqe("train", "rsfm120k-train@gem.pkl", "-o", "model", *arguments, "--levels", "1")
    assert ran.status == 0, ran.err
    assert Path("model/model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["get", "atlantis"], ["atlantis", "roxford5k"]),
        (["get", "rparis6k"], ["404", "gnd_rparis6k.pkl"]),
        (["path", "atlantis"], ["atlantis"]),
        (["pictures", "roxford5k"], ["--pictures"]),
        (["describe", "roxford5k"], ["gqe data get roxford5k"]),
        (["get", "roxford5k", "--root", "/proc/nowhere"], ["/proc/nowhere"]),
    ],
)
def test_mistakes(gqe, site: Site, arguments: list[str], texts: list[str]) -> None:
    one_line(gqe("data", *arguments), *texts)


def test_what_came_is_wrong(gqe, site: Site, tmp_path: Path) -> None:
    site.files["/roxford5k/gnd_roxford5k.pkl"] = b"<html>log in first</html>"
    one_line(gqe("data", "get", "roxford5k"), "not the file")
    site.files["/roxford5k/gnd_roxford5k.pkl"] = layouts.truth_bytes()
    site.errors = [500] * 9
    one_line(gqe("data", "get", "roxford5k", "--tries", "1"), "500")
    network = "/gl18-tl-resnet50-gem-w/gl18-tl-resnet50-gem-w-83fdc30.pth"
    site.files[network] = b"PK\x03\x04 not these weights"
    site.errors = []
    one_line(gqe("data", "get", "gl18-tl-resnet50-gem-w"), "SHA-256", "83fdc30")


def test_a_killed_command_goes_on(gqe, site: Site, tmp_path: Path) -> None:
    archive = "/roxford5k/oxbuild_images-v1.tgz"
    site.block, site.slow = 4096, 0.02
    command = [sys.executable, "-c", "from gqe.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "data", "get", "roxford5k", "--pictures", "--yes"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    partial = tmp_path / "data" / "roxford5k" / ".archives" / ".partial" / "oxbuild_images-v1.tgz"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size > 20_000):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "data" / "roxford5k" / "jpg").exists()
    came = partial.stat().st_size
    assert came < len(site.files[archive])
    site.slow = 0.0
    site.seen.clear()
    ran = gqe("data", "get", "roxford5k", "--pictures", "--yes")
    assert ran.status == 0, ran.err
    assert site.gets() == [(archive, f"bytes={came}-")]
    jpg = tmp_path / "data" / "roxford5k" / "jpg"
    assert {path.stem for path in jpg.iterdir()} == {*layouts.NAMES, *layouts.QUERIES}
    assert all(path.stat().st_size == 20_000 for path in jpg.iterdir())
    np.testing.assert_array_equal(sorted(path.name for path in (jpg.parent / ".archives").glob("*")), [])
