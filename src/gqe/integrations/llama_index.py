"""A LlamaIndex retriever: `pip install 'gqe[llamaindex]'`."""

from __future__ import annotations

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TextNode

from gqe.integrations.documents import embed_query, find_documents, text_and_metadata


class LlamaIndexRetriever(BaseRetriever):
    """Expanded search as a LlamaIndex retriever; scores are cosines.

    Args:
        target: an Index, a fitted Expander, a connected store or a wrapped FAISS index.
        embedder: a LlamaIndex BaseEmbedding, or see `gqe.integrations.documents.embed_query`.
        documents: texts, dictionaries or nodes by id; None for the metadata of an Index.
        similarity_top_k: how many nodes.
        text_key: which column holds the text, where documents are dictionaries.
        search_kwargs: further arguments of the search.
        **settings: of BaseRetriever.
    """

    def __init__(
        self,
        target: Any,
        embedder: Any,
        documents: Any = None,
        *,
        similarity_top_k: int = 4,
        text_key: str = "text",
        search_kwargs: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._target, self._embedder, self._documents = target, embedder, documents
        self._similarity_top_k, self._text_key = similarity_top_k, text_key
        self._search_kwargs = search_kwargs

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = query_bundle.embedding or embed_query(self._embedder, query_bundle.query_str)
        result = []
        for hit in find_documents(
            self._target, vector, self._similarity_top_k, self._documents, self._search_kwargs
        ):
            node = hit.document
            if not isinstance(node, BaseNode):
                text, rest = text_and_metadata(hit, self._text_key)
                node = TextNode(text=text, id_=str(hit.id), metadata=rest)
            result.append(NodeWithScore(node=node, score=hit.score))
        return result
