"""What retrievers of all libraries do: embed a text, search, and look up the documents that were found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.retrieval import Searchable


class FoundDocument(NamedTuple):
    """A document that was found: its id, its score, and what is known of it."""

    id: Any
    score: float
    document: Any


def embed_query(embedder: Any, text: str) -> np.ndarray[Any, Any]:
    """The embedding (d,) of a text.

    Args:
        embedder: of LangChain (`embed_query`), LlamaIndex (`get_query_embedding`) or sentence-transformers
            (`encode_query` or `encode`), or any function of a text.
        text: a query.
    """
    for name in ("embed_query", "get_query_embedding", "encode_query", "encode"):
        if callable(getattr(embedder, name, None)):
            return _as_vector(getattr(embedder, name)(text))
    if callable(embedder):
        return _as_vector(embedder(text))
    raise InputError(
        "embedder: expected a function of a text, or an embedder of LangChain, LlamaIndex or"
        f" sentence-transformers, got {type(embedder).__name__}"
    )


def find_documents(
    target: Searchable, vector: Any, k: int, documents: Any = None, options: Mapping[str, Any] | None = None
) -> list[FoundDocument]:
    """The documents nearest to an embedding, best first.

    Args:
        target: what is searched.
        vector: (d,) embedding of the query.
        k: how many documents.
        documents: by id: a dictionary, a list (for ids that count from 0) or a function; None for the
            metadata that is stored with an Index, or the fields of a store.
        options: further arguments of the search.
    """
    found = target.search(_as_vector(vector), k, **(options or {}))
    ids, scores = np.asarray(found.ids).tolist(), np.asarray(found.scores).tolist()
    hits = [(name, score) for name, score in zip(ids, scores, strict=True) if name is not None and name != -1]
    known = _look_up(target, documents, [name for name, _ in hits])
    return [FoundDocument(name, score, document) for (name, score), document in zip(hits, known, strict=True)]


def text_and_metadata(hit: FoundDocument, text_key: str) -> tuple[str, dict[str, Any]]:
    """A document that is a text, or a dictionary with one, as its text and the rest."""
    if isinstance(hit.document, str):
        return hit.document, {}
    if isinstance(hit.document, Mapping) and isinstance(hit.document.get(text_key), str):
        rest = {name: value for name, value in hit.document.items() if name != text_key}
        return hit.document[text_key], rest
    raise InputError(
        f"documents: item {hit.id} has no text; give texts, or dictionaries with {text_key!r} (see text_key)"
    )


def _look_up(target: Any, documents: Any, ids: list[Any]) -> list[Any]:
    if documents is None:
        get: Callable[[list[Any]], list[Any]] | None = getattr(target, "get", None)
        if get is None:
            raise InputError("documents: only an Index or a store keeps them; give a dictionary by id")
        return get(ids)
    if callable(documents):
        return [documents(name) for name in ids]
    try:
        if isinstance(documents, Mapping | Sequence):
            return [documents[name] for name in ids]
    except (KeyError, IndexError, TypeError):
        raise InputError("documents: they do not hold every id that was found; give all") from None
    raise InputError(f"documents: expected a dictionary by id, got {type(documents).__name__}")


def _as_vector(vector: Any) -> np.ndarray[Any, Any]:
    result = np.asarray(vector, dtype=np.float32)
    if result.ndim != 1:
        raise InputError(f"embedder: expected a vector for a text, got shape {result.shape}")
    return result
