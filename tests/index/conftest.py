"""Small tensors are faster with one thread, most of all on a machine that has other work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with _one_thread_of_faiss():
        yield
    torch.set_num_threads(before)


@contextmanager
def _one_thread_of_faiss() -> Iterator[None]:
    if find_spec("faiss") is None:  # as on a machine that is there for its GPU
        yield
        return
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)
