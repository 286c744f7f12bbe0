"""Text search: results before and after expansion.

    python examples/text_search.py "wait until a thread ends"

The texts are the docstrings of Python's own library, so that the script runs anywhere; one of ten is held
back as a query, and texts of its module count as relevant. `embed` is latent semantic analysis, which needs
no download. With a network of yours it is one line:

    embed = SentenceTransformer("all-MiniLM-L6-v2").encode
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import svds

import gqe

# fmt: off
MODULES = [
    "argparse", "asyncio", "bz2", "calendar", "collections", "csv", "datetime", "decimal", "fractions",
    "ftplib", "gzip", "heapq", "imaplib", "inspect", "ipaddress", "json", "logging", "lzma", "mailbox",
    "os", "pathlib", "pickle", "queue", "random", "re", "sched", "shutil", "smtplib", "socket", "sqlite3",
    "ssl", "statistics", "string", "subprocess", "tarfile", "tempfile", "threading", "time", "traceback",
    "unittest", "uuid", "wave", "zipfile",
]
# fmt: on


def library_texts(modules: list[str]) -> dict[str, str]:
    """Docstrings by name, such as "csv.writer"."""
    texts = {}
    for name in modules:
        module = importlib.import_module(name)
        for title, thing in vars(module).items():
            inner = vars(thing).items() if inspect.isclass(thing) else ()
            for path, each in [(title, thing), *((f"{title}.{part}", value) for part, value in inner)]:
                text = inspect.getdoc(each) if callable(each) else None
                if text and len(text) > 60 and "._" not in f".{path}":
                    texts.setdefault(text, f"{name}.{path}")
    return {name: text for text, name in texts.items()}


def latent_semantic_analysis(texts: list[str], dimension: int) -> Callable[[list[str]], np.ndarray]:
    """What turns texts into vectors, learned from texts."""

    def words(text: str) -> list[str]:
        return [word[:6] for word in re.findall(r"[a-z]{3,}", text.lower())]

    def count(batch: list[str]) -> csr_array:
        found = [
            (row, place[word], number)
            for row, text in enumerate(batch)
            for word, number in Counter(words(text)).items()
            if word in place
        ]
        rows, columns, counts = np.array(found or [(0, 0, 0)], dtype=float).T
        return csr_array(
            (np.log1p(counts), (rows.astype(int), columns.astype(int))), (len(batch), len(place))
        )

    seen = Counter(word for text in texts for word in set(words(text)))
    place = {word: at for at, word in enumerate(sorted(word for word, n in seen.items() if n > 1))}
    rarity = diags_array([np.log(len(texts) / seen[word]) for word in place])
    start = np.random.default_rng(0).normal(size=min(len(texts), len(place)))
    basis = svds(count(texts) @ rarity, k=dimension, v0=start)[2]
    return lambda batch: count(batch) @ rarity @ basis.T


def main() -> None:
    """Measure what expansion brings, then search with the texts of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("queries", nargs="*")
    parser.add_argument("--modules", nargs="+", default=MODULES, help="Whose docstrings are searched.")
    parser.add_argument("--dimension", type=int, default=128)
    arguments = parser.parse_args()

    texts = library_texts(arguments.modules)
    embed = latent_semantic_analysis(list(texts.values()), arguments.dimension)
    vectors = embed(list(texts.values()))
    told = np.linalg.norm(vectors, axis=1) > 1e-6  # a text of unknown words has no direction
    names = np.array(list(texts))[told]
    vectors = vectors[told] / np.linalg.norm(vectors[told], axis=1, keepdims=True)
    modules = np.unique([name.partition(".")[0] for name in names], return_inverse=True)[1]

    held = np.arange(len(names)) % 10 == 0
    database, queries, relevant = vectors[~held], vectors[held], (modules[held], modules[~held])
    expander = gqe.expander("universal").fit(database)
    print(f"{len(queries)} queries in {len(database)} texts, mAP in percent:")
    for title, asked in (("before", queries), ("after", expander.expand(queries))):
        print(f"  {title}: {gqe.evaluate(asked @ database.T, relevant).main:.1f}")

    for query in arguments.queries:
        print(f"\n{query!r}")
        for title, expand in (("before", False), ("after", True)):
            found = expander.search(embed([query])[0], k=6, expand=expand)
            print(f"  {title}: {', '.join(names[~held][found.ids])}")


if __name__ == "__main__":
    main()
