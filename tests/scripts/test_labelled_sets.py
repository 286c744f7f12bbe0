from __future__ import annotations

from pathlib import Path

import numpy as np
from labelled_sets import write_sets

from gqe.datasets import load_npz, load_training


def test_three_files_of_different_classes_and_no_query_in_its_database(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), rng.integers(3, 12, 40))
    vectors = rng.normal(size=(len(labels), 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    written = write_sets(tmp_path, vectors, labels)

    train = load_training(tmp_path / "train.npz")
    seen = [set(np.unique(train.labels))]
    assert written["train"] == len(train.labels) == np.isin(labels, list(seen[0])).sum()
    for name in ("val", "test"):
        load_npz(tmp_path / f"{name}.npz")  # readable as a benchmark
        arrays = np.load(tmp_path / f"{name}.npz")
        asked, found = arrays["query_labels"], arrays["database_labels"]
        assert len(np.unique(asked)) == len(asked)
        assert set(asked) == set(found) - {-1}  # each query has something to find
        assert (found == -1).any()
        overlap = arrays["queries"].astype(np.float32) @ arrays["database"].astype(np.float32).T
        assert overlap.max() < 0.999
        seen.append(set(asked))
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
