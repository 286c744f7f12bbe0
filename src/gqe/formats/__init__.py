"""Files in and out: vectors, benchmark arrays and ground truth.

Large files are mapped, not read: an array returned by `read_vectors` costs no memory until its rows are used.
Everything is written beside its target and renamed, so a reader never meets half a file.
"""

from __future__ import annotations

from gqe.formats.ground_truth import OfficialGroundTruth, QueryTruth, read_ground_truth
from gqe.formats.numpy_files import read_arrays
from gqe.formats.trec import read_qrels, read_run, write_run
from gqe.formats.vectors import READABLE_ENDINGS, WRITABLE_ENDINGS, convert, read_vectors, write_vectors

__all__ = [
    "READABLE_ENDINGS",
    "WRITABLE_ENDINGS",
    "OfficialGroundTruth",
    "QueryTruth",
    "convert",
    "read_arrays",
    "read_ground_truth",
    "read_qrels",
    "read_run",
    "read_vectors",
    "write_run",
    "write_vectors",
]
