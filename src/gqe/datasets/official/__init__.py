"""Official data sets: fetched from where their owners publish them, read in the layouts people have."""

from __future__ import annotations

from gqe.datasets.official.catalog import COLLECTIONS, Collection, File, collection
from gqe.datasets.official.download import Patience, download
from gqe.datasets.official.getting import Plan, get, plan, shown, verify
from gqe.datasets.official.named import BENCHMARKS, TRAINING, is_official, load_benchmark, load_training
from gqe.datasets.official.pictures import Picture, pictures
from gqe.datasets.official.place import data_root

__all__ = [
    "BENCHMARKS",
    "COLLECTIONS",
    "TRAINING",
    "Collection",
    "File",
    "Patience",
    "Picture",
    "Plan",
    "collection",
    "data_root",
    "download",
    "get",
    "is_official",
    "load_benchmark",
    "load_training",
    "pictures",
    "plan",
    "shown",
    "verify",
]
