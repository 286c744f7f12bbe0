"""Official data sets: fetched from where their owners publish them, read in the layouts people have."""

from __future__ import annotations

from gqe.datasets.official.benchmarks import (
    BENCHMARKS,
    TRAINING,
    PictureFile,
    is_official,
    load_benchmark,
    load_training,
    pictures,
)
from gqe.datasets.official.catalog import COLLECTIONS, Collection, File, collection, data_root
from gqe.datasets.official.download import RetryPolicy, download
from gqe.datasets.official.fetch import DownloadPlan, format_size, get, is_here, plan, verify
from gqe.datasets.official.record import read_record

__all__ = [
    "BENCHMARKS",
    "COLLECTIONS",
    "TRAINING",
    "Collection",
    "DownloadPlan",
    "File",
    "PictureFile",
    "RetryPolicy",
    "collection",
    "data_root",
    "download",
    "format_size",
    "get",
    "is_here",
    "is_official",
    "load_benchmark",
    "load_training",
    "pictures",
    "plan",
    "read_record",
    "verify",
]
