"""What `gqe extract` costs beside the network alone: pictures a second, and onnxruntime in a plain loop.

    python benchmarks/extract.py                   # 2,000 pictures, all cores
    python benchmarks/extract.py --pictures 200 --threads 1

Both describe the same JPEG files with the same network (EfficientNet-Lite0, 224 pixels), the same threads and
the same batch. The plain loop opens, resizes, joins and runs, and keeps the vectors in memory; ours also
writes parts, vectors, names and a record, and starts its workers. They take turns; the ratio is the median
over the rounds. Starting Python and loading the network count for neither; both run once on a few pictures
before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from gqe.extraction import Lite0, extract, pictures_of_folder

SIDE, SIZE, BATCH = 256, 224, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="of onnxruntime; all cores if left out")
    parser.add_argument("--workers", type=int, nargs="+", default=[-1], help="-1: as gqe extract chooses")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "pictures")
        folder.mkdir()
        for number in range(options.pictures):
            picture(number).save(folder / f"{number:05d}.jpg", quality=90)
        network = Lite0(SIZE, batch_size=BATCH, threads=options.threads)
        few = Path(place, "few")
        few.mkdir()
        for number in range(2 * BATCH):
            picture(number).save(few / f"{number:05d}.jpg", quality=90)
        np.testing.assert_allclose(ours(few, network, None), bare(few, network), atol=1e-5)
        ways = ["bare", *(f"workers {count}" for count in options.workers)]
        times: dict[str, list[float]] = {way: [] for way in ways}
        work: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.rounds):
            for way in ways if turn % 2 == 0 else reversed(ways):
                start, used = time.perf_counter(), processor_seconds()
                if way == "bare":
                    expected = bare(folder, network)
                else:
                    workers = int(way.split()[1])
                    found = ours(folder, network, None if workers < 0 else workers)
                times[way].append(time.perf_counter() - start)
                work[way].append(processor_seconds() - used)
            np.testing.assert_allclose(found, expected, atol=1e-5)
    result: dict[str, Any] = {
        "pictures": options.pictures,
        "cores": os.cpu_count(),
        "threads": options.threads,
    }
    for way, seconds in times.items():
        result[way] = {
            "seconds": [round(second, 2) for second in seconds],
            "processor seconds": [round(second, 2) for second in work[way]],
            "pictures a second": round(options.pictures / statistics.median(seconds), 1),
            "of bare": round(
                statistics.median(b / s for b, s in zip(times["bare"], seconds, strict=True)), 3
            ),
        }
    print(json.dumps({**result, "goal": ">= 0.9 of bare"}, indent=2))


def processor_seconds() -> float:
    """Of this process and the workers that have ended: steadier than a clock where others use the cores."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def bare(folder: Path, network: Lite0) -> np.ndarray[Any, Any]:
    """Onnxruntime in a plain loop."""
    paths, rows = sorted(folder.iterdir()), []
    for first in range(0, len(paths), BATCH):
        batch = []
        for path in paths[first : first + BATCH]:
            with Image.open(path) as image:
                batch.append(np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)))
        rows.append(network._session.run(None, {"images": np.stack(batch)})[0])
    vectors = np.concatenate(rows)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def ours(folder: Path, network: Lite0, workers: int | None) -> np.ndarray[Any, Any]:
    """All that `gqe extract` does."""
    with tempfile.TemporaryDirectory() as place:
        written = extract(
            pictures_of_folder(folder), Path(place, "vectors.npy"), network, folder=folder, workers=workers
        )
        return np.load(written.vectors)


def picture(number: int) -> Image.Image:
    """Coarse noise with shapes on it."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        left, top = rng.integers(0, SIDE - 40, 2).tolist()
        width, height = rng.integers(10, 120, 2).tolist()
        colour = tuple(rng.integers(0, 256, 3).tolist())
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((left, top, left + width, top + height), fill=colour)
    return image


if __name__ == "__main__":
    main()
