"""Data sets: the built-in town, and label benchmarks from files."""

from gqe.datasets.base import Benchmark, TrainingSet, load_npz
from gqe.datasets.registry import available, is_benchmark_file, load, load_training, make

__all__ = [
    "Benchmark",
    "TrainingSet",
    "available",
    "is_benchmark_file",
    "load",
    "load_npz",
    "load_training",
    "make",
]
