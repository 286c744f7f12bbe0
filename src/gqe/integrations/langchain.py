"""A LangChain retriever: `pip install 'gqe[langchain]'`."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from gqe.integrations.documents import embed_query, find_documents, text_and_metadata


class LangChainRetriever(BaseRetriever):
    """Expanded search as a LangChain retriever; `metadata["score"]` of a document is its cosine.

    Attributes:
        target: an Index, a fitted Expander, a connected store or a wrapped FAISS index.
        embedder: LangChain Embeddings, or see `gqe.integrations.documents.embed_query`.
        documents: texts, dictionaries or Documents by id; None for the metadata of an Index.
        k: how many documents.
        text_key: which column holds the text, where documents are dictionaries.
        search_kwargs: further arguments of the search, such as {"filter": {"year": 2024}}.
    """

    target: Any
    embedder: Any
    documents: Any = None
    k: int = 4
    text_key: str = "text"
    search_kwargs: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun | None = None
    ) -> list[Document]:
        vector = embed_query(self.embedder, query)
        result = []
        for hit in find_documents(self.target, vector, self.k, self.documents, self.search_kwargs):
            if isinstance(hit.document, Document):
                metadata = hit.document.metadata | {"score": hit.score}
                result.append(hit.document.model_copy(update={"metadata": metadata}))
            else:
                text, rest = text_and_metadata(hit, self.text_key)
                result.append(
                    Document(page_content=text, id=str(hit.id), metadata=rest | {"score": hit.score})
                )
        return result
