from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="pip install 'gqe[extract]'")
from PIL import Image

from extraction.preparations import Broken, Counting, Deadly, Plain
from gqe.extraction.decoding import decode
from gqe.extraction.pictures import DecodingOptions, Picture


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Picture]:
    """Thirty pictures, each one pixel wider than the one before."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    found = []
    for width in range(1, 31):
        path = tmp_path / f"{width:02d}.png"
        Image.new("RGB", (width, 4), (width, 0, 0)).save(path)
        found.append(Picture(str(path), path.name))
    return found


def widths(answers: list[np.ndarray | str]) -> list[int | str]:
    return [answer if isinstance(answer, str) else answer.shape[1] for answer in answers]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_pictures_come_in_order(pictures: list[Picture], workers: int) -> None:
    Path(pictures[7].path).write_text("a letter")
    answers = list(decode(pictures, Plain(), DecodingOptions(), workers, ahead=4))
    assert widths(answers) == [*range(1, 8), "not a picture of a known format", *range(9, 31)]
    assert all(isinstance(a, str) or (a[:, :, 0] == a.shape[1]).all() for a in answers)


def test_boxes_and_reasons_travel(pictures: list[Picture]) -> None:
    boxed = [pictures[20]._replace(box=(1, 1, 6, 3)), pictures[3]._replace(path="absent.jpg")]
    answers = list(decode(boxed, Plain(), DecodingOptions(), 1))
    assert not isinstance(answers[0], str)
    assert answers[0].shape == (2, 5, 3)
    assert answers[1] == "no such file"
    assert list(decode(pictures[:2], Broken(), DecodingOptions(), 1)) == ["cannot be resized"] * 2


def test_a_decoder_that_crashes_costs_one_picture(pictures: list[Picture]) -> None:
    answers = widths(list(decode(pictures, Deadly(width=11), DecodingOptions(), 2)))
    assert answers == [*range(1, 11), "its decoder was ended (signal 9)", *range(12, 31)]


def test_only_so_many_pictures_are_in_flight(pictures: list[Picture], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    answers = decode(pictures, Counting(folder=str(notes)), DecodingOptions(), 2, ahead=5)
    next(answers)
    time.sleep(0.5)
    assert len(list(notes.iterdir())) == 5
    next(answers)
    time.sleep(0.3)
    assert len(list(notes.iterdir())) == 6
    answers.close()  # type: ignore[attr-defined]


def test_nothing_to_decode() -> None:
    assert list(decode([], Plain(), DecodingOptions(), 2)) == []
