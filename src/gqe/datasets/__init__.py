"""Data sets: the built-in town, the official benchmarks, and label benchmarks from files."""

from gqe.datasets.base import Benchmark, TrainingSet, load_npz
from gqe.datasets.registry import available, is_benchmark_file, is_name, load, load_training, make

__all__ = [
    "Benchmark",
    "TrainingSet",
    "available",
    "is_benchmark_file",
    "is_name",
    "load",
    "load_npz",
    "load_training",
    "make",
]
