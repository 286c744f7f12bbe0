"""Expanded queries in front of a faiss index that is there already.

    python examples/faiss_search.py --items 20000

faiss does both searches; only the vector it is asked for changes. The vectors here are made up, with
classes, so that the script can say what expansion brings.
"""

from __future__ import annotations

import argparse

import faiss
import numpy as np

import gqe


def main() -> None:
    """Compare the results of faiss before and after expansion."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--per-class", type=int, default=20)
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    classes = arguments.items // arguments.per_class
    centres = rng.normal(size=(classes, arguments.dimension))
    labels = np.repeat(np.arange(classes), arguments.per_class)
    chosen = rng.choice(classes, size=min(200, classes), replace=False)

    def photographed(which: np.ndarray) -> np.ndarray:
        noisy = centres[which] + rng.normal(size=(len(which), arguments.dimension))
        return (noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype(np.float32)

    vectors, queries = photographed(labels), photographed(chosen)

    index = faiss.index_factory(
        arguments.dimension, f"IVF{max(1, classes // 20)},Flat", faiss.METRIC_INNER_PRODUCT
    )
    index.train(vectors)
    index.add(vectors)
    index.nprobe = 8

    # Once, in advance. With recall, neighbours are found approximately where that is faster.
    expander = gqe.expander("universal").fit(vectors, recall=0.95)

    for title, asked in (("before", queries), ("after", expander.expand(queries))):
        _, ids = index.search(asked, arguments.per_class)
        right = 100 * np.mean(labels[ids] == chosen[:, None])
        print(f"{title}: {right:.1f}% of the results are of the right class")


if __name__ == "__main__":
    main()
