"""What `gqe.wrap` and the retrievers cost beyond the searches and the expansion that they stand for.

    python benchmarks/integrations.py                        # 20,000 and 200,000 items: about ten minutes
    python benchmarks/integrations.py --sizes 20000          # a minute
    python benchmarks/integrations.py --methods alpha:k=10   # one method

What is measured, and why it is measured so, stands in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import faiss
import numpy as np
import torch
from common import clustered

import gqe
from gqe.embeddings import as_table
from gqe.neighbors.candidates import Candidates
from gqe.retrieval import expand_once

DIM, K, QUERIES = 128, 10, 512
Steps: TypeAlias = list[Callable[[], Any]]
KINDS = ("Flat", "IVF{lists},Flat", "HNSW32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--methods", nargs="+", default=["universal", "alpha:k=10"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=100, help="of one query; fewer of larger batches")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rows = []
    print(f"one thread, gqe {gqe.__version__}, faiss {faiss.__version__}")
    print(f"{'milliseconds':42} {'parts':>8} {'whole':>8} {'more':>7} {'ratio':>6}")
    for size in options.sizes:
        for row in measured(size, options):
            rows.append(row)
            print(
                f"{row['what']:42} {row['parts']:8.3f} {row['whole']:8.3f} {row['more']:7.3f}"
                f" {row['ratio']:6.3f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def measured(size: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of the table for one size of the database."""
    database, queries = clustered(size, DIM), clustered(QUERIES, DIM, seed=1)
    print(f"{size} items: the graph and the indexes...", file=sys.stderr, flush=True)
    graph = gqe.knn(database, 33, recall=0.95)
    indexes = {kind.partition("{")[0].partition(",")[0]: filled(kind, database) for kind in KINDS}
    for method in options.methods:
        expander = gqe.expander(method).fit(database, graph)
        expander.search(queries, K)  # all levels that are read are computed
        for kind, index in indexes.items():
            wrapped = gqe.wrap(index, method=expander, graph=graph)
            wrapped.search(queries, K)
            for batch in options.batches:
                parts = [queries[at : at + batch] for at in range(0, QUERIES, batch)]
                steps = [faiss_steps(index, wrapped, expander, part) for part in parts]
                what = f"{size:,} {kind}, {method}, batch of {batch}"
                yield row(what, steps, max(10, options.rounds // batch))
        if size > min(options.sizes):  # a larger index takes long to build, and hides more
            continue
        with tempfile.TemporaryDirectory() as folder:
            for library, steps in retriever_steps(Path(folder), database, method):
                yield row(f"{size:,} {library}, {method}", steps, options.rounds)


def filled(kind: str, database: np.ndarray) -> Any:
    """An index of the database, searched as widely as expansion wants it."""
    index = faiss.index_factory(
        DIM, kind.format(lists=round(len(database) ** 0.5)), faiss.METRIC_INNER_PRODUCT
    )
    index.train(database)
    index.add(database)
    if isinstance(index, faiss.IndexIVF):
        index.nprobe = 8
    elif isinstance(index, faiss.IndexHNSW):
        index.hnsw.efSearch = 200
    return index


def faiss_steps(index: Any, wrapped: Any, expander: gqe.Expander, part: np.ndarray) -> Steps:
    """A search of `gqe.wrap`, and before it what it stands for: two bare searches and the expansion."""
    source, options = expander.target.source, expander.query_options
    width = options.num_neighbors(source.graph_k)
    similarities, ids = index.search(part, width)
    near = Candidates(torch.from_numpy(ids), torch.from_numpy(similarities))
    queries = as_table(part)
    expanded = wrapped.expand(part)
    return [
        lambda: index.search(part, width),
        lambda: expand_once(source, queries, near, options.contrast),
        lambda: index.search(expanded, K),
        lambda: wrapped.search(part, K),
    ]


def retriever_steps(folder: Path, database: np.ndarray, method: str) -> Iterator[tuple[str, list[Steps]]]:
    """Retrievers of the libraries that are installed, beside embedding and `Index.search` with metadata."""
    texts = [f"text {row}" for row in range(len(database))]
    asked = clustered(QUERIES, DIM, seed=1)

    def embed(text: str) -> np.ndarray:
        return asked[int(text)]

    index = gqe.Index.build(database, method, folder / "index", metadata={"text": texts}, recall=0.95)
    calls: dict[str, Callable[[str], Any]] = {}
    if find_spec("langchain_core"):
        from gqe.integrations.langchain import LangChainRetriever

        calls["LangChain"] = LangChainRetriever(target=index, embedder=embed, k=K).invoke
    if find_spec("llama_index"):
        from gqe.integrations.llama_index import LlamaIndexRetriever

        calls["LlamaIndex"] = LlamaIndexRetriever(index, embed, similarity_top_k=K).retrieve
    if find_spec("haystack"):
        from gqe.integrations.haystack import HaystackRetriever

        haystack = HaystackRetriever(index, embedder=embed, top_k=K)
        calls["Haystack"] = lambda query: haystack.run(query=query)

    def plain(query: str) -> Any:
        return index.search(embed(query), K, with_metadata=True)

    for library, call in calls.items():
        yield library, [[partial(plain, query), partial(call, query)] for query in map(str, range(QUERIES))]


def row(what: str, batches: list[Steps], rounds: int) -> dict[str, Any]:
    """Times of all steps but the last together, and of the last, which does the same.

    They take turns on the same queries, and the ratio is the median over the rounds, because the speed of a
    machine changes while it is measured.
    """
    for step in batches[0]:
        step()
    times = []
    for turn in range(rounds):
        *parts, whole = map(milliseconds, batches[turn % len(batches)])
        times.append((sum(parts), whole))
    parts, whole = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "what": what,
        "parts": parts,
        "whole": whole,
        "more": statistics.median(whole - parts for parts, whole in times),
        "ratio": statistics.median(whole / parts for parts, whole in times),
    }


def milliseconds(step: Callable[[], Any]) -> float:
    """What a step takes on one thread, without the time in which other programs had its core."""
    start = time.process_time()
    step()
    return 1000 * (time.process_time() - start)


if __name__ == "__main__":
    main()
