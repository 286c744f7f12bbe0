"""A Haystack component: `pip install 'gqe[haystack]'`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component

from gqe.errors import InputError
from gqe.integrations.documents import embed_query, find_documents, text_and_metadata


@component
class HaystackRetriever:
    """Expanded search as a component of a Haystack pipeline; scores are cosines.

    Args:
        target: an Index, a fitted Expander, a connected store or a wrapped FAISS index.
        documents: texts, dictionaries or Documents by id; None for the metadata of an Index.
        embedder: for `run(query=...)`, see `gqe.integrations.documents.embed_query`; not needed behind a text
            embedder of Haystack, which gives `query_embedding`.
        top_k: how many documents.
        text_key: which column holds the text, where documents are dictionaries.
        search_kwargs: further arguments of the search.
    """

    def __init__(
        self,
        target: Any,
        documents: Any = None,
        *,
        embedder: Any = None,
        top_k: int = 10,
        text_key: str = "text",
        search_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._target, self._documents, self._embedder = target, documents, embedder
        self._top_k, self._text_key, self._search_kwargs = top_k, text_key, search_kwargs

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float] | None = None, query: str | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The documents nearest to the embedding of a query, or to a text.

        Args:
            query_embedding: (d,) embedding.
            query: a text instead, with an `embedder`.
            top_k: how many documents, if not as many as said before.
        """
        vector: Any = query_embedding
        if vector is None:
            if query is None or self._embedder is None:
                raise InputError(
                    "query_embedding: missing; connect a text embedder, or give query and embedder"
                )
            vector = embed_query(self._embedder, query)
        result = []
        for hit in find_documents(
            self._target, vector, top_k or self._top_k, self._documents, self._search_kwargs
        ):
            if isinstance(hit.document, Document):
                result.append(replace(hit.document, score=hit.score))
            else:
                text, rest = text_and_metadata(hit, self._text_key)
                result.append(Document(id=str(hit.id), content=text, meta=rest, score=hit.score))
        return {"documents": result}
