"""Every odd picture is either opened as what it shows or refused with a reason."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="pip install 'gqe[extract]'")
from PIL import Image

from gqe import InputError
from gqe.extraction import pictures_of_folder, pictures_of_list
from gqe.extraction.pictures import DecodingOptions, UnreadablePictureError, open_picture

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def halves(left: object = RED, right: object = BLUE, mode: str = "RGB") -> Image.Image:
    """40 x 20: the left half of one colour, the right half of another."""
    image = Image.new(mode, (40, 20), left)  # type: ignore[arg-type]
    image.paste(right, (20, 0, 40, 20))  # type: ignore[arg-type]
    return image


def colours(path: Path, **settings: object) -> list[tuple[int, ...]]:
    image = open_picture(path, **settings).image  # type: ignore[arg-type]
    assert image.mode == "RGB"
    assert image.size == (40, 20)
    return [image.getpixel((5, 10)), image.getpixel((35, 10))]


def near(found: list[tuple[int, ...]], *expected: tuple[int, ...], by: int = 6) -> None:
    np.testing.assert_allclose(np.array(found, int), np.array(expected), atol=by)


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "gif", "webp", "ppm", "jpg"])
def test_plain_pictures(tmp_path: Path, ending: str) -> None:
    halves().save(tmp_path / f"a.{ending}", **({"lossless": True} if ending == "webp" else {}))
    near(colours(tmp_path / f"a.{ending}"), RED, BLUE)


def test_grey_black_and_white_and_cmyk(tmp_path: Path) -> None:
    halves(0, 200, "L").save(tmp_path / "l.png")
    near(colours(tmp_path / "l.png"), (0, 0, 0), (200, 200, 200))
    halves(0, 1, "1").save(tmp_path / "1.png")
    near(colours(tmp_path / "1.png"), (0, 0, 0), WHITE)
    halves().convert("CMYK").save(tmp_path / "c.jpg", quality=95)
    near(colours(tmp_path / "c.jpg"), RED, BLUE, by=12)


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    halves((255, 0, 0, 255), (0, 0, 255, 0), "RGBA").save(tmp_path / "rgba.png")
    near(colours(tmp_path / "rgba.png"), RED, WHITE)
    halves((0, 255), (0, 0), "LA").save(tmp_path / "la.png")
    near(colours(tmp_path / "la.png"), (0, 0, 0), WHITE)
    palette = Image.new("P", (40, 20), 0)
    palette.putpalette([*RED, *BLUE])
    palette.paste(1, (20, 0, 40, 20))
    palette.save(tmp_path / "p.png", transparency=1)
    near(colours(tmp_path / "p.png"), RED, WHITE)
    palette.save(tmp_path / "opaque.png")
    near(colours(tmp_path / "opaque.png"), RED, BLUE)


def test_sixteen_bits_and_floats(tmp_path: Path) -> None:
    deep = np.zeros((20, 40), np.uint16)
    deep[:, 20:] = 40_000  # 8-bit conversion by Pillow alone would give white
    grey = (156, 156, 156)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(deep).save(tmp_path / "deep.tif")
    for name in ("deep.png", "deep.tif"):
        near(colours(tmp_path / name), (0, 0, 0), grey, by=1)
    Image.fromarray((deep / 65535).astype(np.float32)).save(tmp_path / "float.tif")
    near(colours(tmp_path / "float.tif"), (0, 0, 0), grey, by=1)
    Image.fromarray(np.where(deep > 0, np.nan, 0).astype(np.float32)).save(tmp_path / "nan.tif")
    near(colours(tmp_path / "nan.tif"), (0, 0, 0), (0, 0, 0))


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    others = [Image.new("RGB", (40, 20), "lime")] * 3
    halves().save(tmp_path / "a.gif", save_all=True, append_images=others)
    near(colours(tmp_path / "a.gif"), RED, BLUE)
    halves().save(tmp_path / "a.webp", save_all=True, append_images=others, lossless=True)
    near(colours(tmp_path / "a.webp"), RED, BLUE)


def test_pictures_are_turned_as_their_exif_data_say(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    halves().save(tmp_path / "turned.jpg", exif=exif, quality=95)
    near(colours(tmp_path / "turned.jpg"), BLUE, RED)
    near(colours(tmp_path / "turned.jpg", opening=DecodingOptions(rotate=False)), RED, BLUE)
    exif[0x0112] = 6
    halves().save(tmp_path / "tall.jpg", exif=exif)
    assert open_picture(tmp_path / "tall.jpg").image.size == (20, 40)


def test_broken_exif_data_do_no_harm(tmp_path: Path) -> None:
    halves().save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage", quality=95)
    near(colours(tmp_path / "a.jpg"), RED, BLUE)


def test_a_box_is_cut_out_of_the_picture_at_full_size(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    opened = open_picture(tmp_path / "a.png", box=(5.4, 2.6, 20.5, 11.0), at_least=4)
    np.testing.assert_array_equal(np.asarray(opened.image), pixels[3:11, 5:20])
    assert opened.full_side == 50
    # A box may reach beyond its picture, as some published ones do; what is not there is black.
    beyond = np.asarray(open_picture(tmp_path / "a.png", box=(40, 20, 60, 40)).image)
    np.testing.assert_array_equal(beyond[:10, :10], pixels[20:, 40:])
    assert not beyond[10:].any()


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (9, 9, 2, 2), (50, 0, 60, 10), (-9, -9, 0, 0)])
def test_impossible_boxes(tmp_path: Path, box: tuple[int, ...]) -> None:
    halves().save(tmp_path / "a.png")
    with pytest.raises(UnreadablePictureError, match="its box"):
        open_picture(tmp_path / "a.png", box=box)


def test_large_jpeg_files_may_be_decoded_smaller(tmp_path: Path) -> None:
    Image.new("RGB", (1600, 1200), RED).save(tmp_path / "large.jpg")
    assert open_picture(tmp_path / "large.jpg").image.size == (1600, 1200)
    assert open_picture(tmp_path / "large.jpg", at_least=300).image.size == (400, 300)
    assert open_picture(tmp_path / "large.jpg", at_least=300, box=(0, 0, 900, 9)).image.size == (900, 9)


def bomb(path: Path, side: int) -> None:
    """A PNG file of a few bytes that promises side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    for side in (9_600, 60_000):  # Pillow would only warn of the first
        bomb(tmp_path / "bomb.png", side)
        with pytest.raises(UnreadablePictureError, match="larger than 89478485 pixels; see --max-pixels"):
            open_picture(tmp_path / "bomb.png")
    halves().save(tmp_path / "a.png")
    with pytest.raises(UnreadablePictureError, match="larger than 799"):
        open_picture(tmp_path / "a.png", opening=DecodingOptions(most_pixels=799))
    near(colours(tmp_path / "a.png", opening=DecodingOptions(most_pixels=800)), RED, BLUE)
    assert before == Image.MAX_IMAGE_PIXELS


def test_what_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("a letter")
    (tmp_path / "program.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)).save(tmp_path / "x.jpg")
    whole = (tmp_path / "x.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    for name, reason in {
        "empty.jpg": "empty file",
        "text.jpg": "not a picture",
        "program.jpg": "not a picture",
        "half.jpg": "truncated",
        "absent.jpg": "no such file",
        ".": "directory",
        "null\0.jpg": "null",
    }.items():
        with pytest.raises(UnreadablePictureError, match=reason):
            open_picture(tmp_path / name)


def test_no_damage_of_a_file_raises_anything_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for ending in ("png", "gif", "tif", "jpg", "webp", "bmp", "ppm"):
        halves().save(tmp_path / f"a.{ending}")
        whole = np.frombuffer((tmp_path / f"a.{ending}").read_bytes(), np.uint8)
        for _ in range(40):
            damaged = whole.copy()
            places = rng.integers(0, len(whole), 4)
            damaged[places] = rng.integers(0, 256, 4)
            (tmp_path / f"b.{ending}").write_bytes(damaged[: rng.integers(1, len(whole) + 1)].tobytes())
            with suppress(UnreadablePictureError):
                assert (
                    open_picture(tmp_path / f"b.{ending}", opening=DecodingOptions(10_000)).image.mode
                    == "RGB"
                )


def touched(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_a_folder_with_all_in_it_in_order(tmp_path: Path) -> None:
    touched(tmp_path, "b.JPG", "a.png", "deep/er/c.webp", "notes.txt", "deep/.hidden.gif")
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would wait for ever
    (tmp_path / "link.tif").symlink_to(tmp_path / "a.png")
    (tmp_path / "deep/around").symlink_to(tmp_path)
    (tmp_path / "folder.jpg").mkdir()
    found = pictures_of_folder(tmp_path)
    assert [p.name for p in found] == ["a.png", "b.JPG", "deep/.hidden.gif", "deep/er/c.webp", "link.tif"]
    assert found[3].path == str(tmp_path / "deep/er/c.webp")


def test_folders_without_pictures(tmp_path: Path) -> None:
    touched(tmp_path, "notes.txt")
    for name, words in ((".", "holds no pictures"), ("absent", "no such folder"), ("notes.txt", "is a file")):
        with pytest.raises(InputError, match=words):
            pictures_of_folder(tmp_path / name)


def test_a_list_gives_order_and_boxes(tmp_path: Path) -> None:
    touched(tmp_path, "a.png", "b.jpg")
    (tmp_path / "list.txt").write_text("b\t1\t2\t30.5\t40\r\na.png\n\nabsent.jpg\n")
    found = pictures_of_list(tmp_path, tmp_path / "list.txt")
    assert [(p.name, p.box) for p in found] == [
        ("b", (1, 2, 30.5, 40)),
        ("a.png", None),
        ("absent.jpg", None),
    ]
    assert [Path(p.path).name for p in found] == ["b.jpg", "a.png", "absent.jpg"]


def test_a_benchmark_gives_its_database_and_its_queries(tmp_path: Path) -> None:
    entry = {"easy": [0], "hard": [], "junk": []}
    truth = {
        "imlist": ["x", "y"],
        "qimlist": ["p", "q"],
        "gnd": [entry | {"bbx": [1.0, 2.0, 3.0, 4.0]}, entry],
    }
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(truth))
    touched(tmp_path, "x.jpg", "p.jpg")
    assert [p.name for p in pictures_of_list(tmp_path, tmp_path / "gnd.pkl")] == ["x", "y"]
    queries = pictures_of_list(tmp_path, f"{tmp_path}/gnd.pkl:queries")
    assert [(p.name, p.box) for p in queries] == [("p", (1, 2, 3, 4)), ("q", None)]
    assert queries[0].path == str(tmp_path / "p.jpg")
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps({"gnd": []}))
    with pytest.raises(InputError, match="does not name its pictures"):
        pictures_of_list(tmp_path, tmp_path / "gnd.pkl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\t1\t2\t3\n", "line 1 is"),
        ("a\nb\t1\t2\t3\tx\n", "line 2 is"),
        ("\t1\t2\t3\t4\n", "line 1 is"),
        ("a\nb\na\n", "'a' twice"),
        ("\n\n", "names no pictures"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(InputError, match=words):
        pictures_of_list(tmp_path, tmp_path / "list.txt")


@pytest.mark.parametrize("name", ["../a.jpg", "/etc/a.jpg", "b/../../a.jpg"])
def test_a_list_names_pictures_of_the_folder_only(tmp_path, name):
    (tmp_path / "list.txt").write_text(f"{name}\n")
    with pytest.raises(InputError, match="does not lie in"):
        pictures_of_list(tmp_path, tmp_path / "list.txt")
