"""Pictures that come and go: hostile uploads are refused, nothing outside of the folder is shown."""

from __future__ import annotations

import os
import zipfile
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from gqe.server import Settings
from gqe.server.pictures import FolderPictures
from server.worlds import BOTH, READ, TOKENS, bearer, build, describer, jpeg, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    settings = Settings(tokens=TOKENS, max_body_bytes=200_000, timeout=5)
    with serving(build(tmp_path_factory.mktemp("limits") / "i"), settings, describe=describer()) as running:
        yield running


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("path", ["/v1/search", "/v1/describe", "/v1/search/picture", "/v1/items"])
def test_a_stream_without_a_size_is_cut_off(served, path) -> None:
    sent = 0

    def stream():
        nonlocal sent
        yield b'--x\r\ncontent-disposition: form-data; name="picture"; filename="a.jpg"\r\n\r\n'
        for _ in range(1600):  # 100 MB
            sent += 1 << 16
            yield bytes(1 << 16)

    before = resident()
    kind = "multipart/form-data; boundary=x" if "e" in path[-2:] else "application/json"
    try:
        answer = served.client.post(path, content=stream(), headers=bearer(BOTH) | {"content-type": kind})
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the connection was closed while we were still sending
    assert sent < 50 << 20
    assert resident() - before < 50 << 20
    assert served.get("/health").status_code == 200


def upload(served, content: bytes, name: str = "a.jpg") -> httpx.Response:
    return served.client.post("/v1/search/picture", files={"picture": (name, content)}, headers=bearer(BOTH))


def png(side: int) -> bytes:
    content = BytesIO()
    Image.new("1", (side, side)).save(content, format="PNG", optimize=True)
    return content.getvalue()


def zipped() -> bytes:
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jpg", bytes(20 << 20))
    return content.getvalue()


HOSTILE = {
    "bomb": png(20_000),
    "truncated": jpeg(side=256)[:-2000],
    "empty": b"",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "zip": zipped(),
    "html": b"<script>alert(1)</script>",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    "header only": jpeg()[:20],
    "zeros": bytes(100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_uploads_are_refused(served, name) -> None:
    before = resident()
    answer = upload(served, HOSTILE[name])
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith("picture: ")
    assert "/tmp" not in answer.json()["detail"]
    assert resident() - before < 64 << 20


def test_a_picture_is_searched_with(served) -> None:
    content = jpeg(3)
    answer = upload(served, content)
    assert answer.status_code == 200
    expected = describer()(content)
    index = served.app.state.service.engine.index
    assert answer.json()["results"][0]["ids"] == index.search(expected, 10).ids.tolist()
    described = served.client.post("/v1/describe", files={"picture": content}, headers=bearer(READ))
    np.testing.assert_allclose(described.json()["vector"], expected, atol=1e-6)


def test_pictures_of_items_stay_inside_their_folder(tmp_path) -> None:
    folder = tmp_path / "pictures"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a.jpg").write_bytes(jpeg(1, 400))
    (tmp_path / "secret.jpg").write_bytes(jpeg(2))
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "text.jpg").write_text("no picture")
    names = [
        "in/a.jpg",
        "../secret.jpg",
        str(tmp_path / "secret.jpg"),
        "link.jpg",
        "text.jpg",
        "gone.jpg",
        "x" * 900,
    ]
    index = build(tmp_path / "index", n=len(names), ids=names)
    with serving(index, pictures=FolderPictures(folder)) as served:
        answers = {name: served.get("/v1/picture", params={"id": name}) for name in [*names, "in/b.jpg"]}
        shown = answers.pop("in/a.jpg")
        assert shown.headers["content-type"] == "image/jpeg"
        assert Image.open(BytesIO(shown.content)).size == (160, 160)
        assert {answer.status_code for answer in answers.values()} == {404}
