"""Retrievers of LangChain, LlamaIndex and Haystack, called their own way, give what `Index.search` gives."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

import gqe
from gqe.integrations.documents import embed_query

WORDS = ["red", "green", "blue", "one", "two", "three", "cat", "dog"]
TEXTS = [f"{a} {b} {c}" for a in WORDS[:3] for b in WORDS[3:6] for c in WORDS[6:]]
QUERY = "red one cat"


def embed(text: str) -> list[float]:
    return [0.1 + text.split().count(word) for word in WORDS]


class Embedder:
    """An embedder with the method of one library."""

    def __init__(self, method: str) -> None:
        setattr(self, method, embed)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    pytest.importorskip("pyarrow", reason="metadata needs pyarrow")
    metadata = {"text": TEXTS, "number": list(range(len(TEXTS)))}
    ids = [f"doc-{i}" for i in range(len(TEXTS))]
    folder = tmp_path_factory.mktemp("retrievers") / "index"
    vectors = [embed(text) for text in TEXTS]
    return gqe.Index.build(vectors, "alpha:k=4", folder, ids=ids, metadata=metadata)


@pytest.fixture(scope="module")
def wrapped():
    vectors = np.array([embed(text) for text in TEXTS], np.float32)
    faiss.normalize_L2(vectors)
    flat = faiss.IndexFlatIP(len(WORDS))
    flat.add(vectors)
    return gqe.wrap(flat, method="alpha:k=4")


@pytest.fixture(scope="module")
def expected(index):
    return index.search(embed(QUERY), 5)


def texts_of(ids):
    return [TEXTS[int(str(name).removeprefix("doc-"))] for name in ids]


def test_metadata_comes_back(index):
    assert index.get(["doc-3", "doc-0"]) == [
        {"text": TEXTS[3], "number": 3},
        {"text": TEXTS[0], "number": 0},
    ]
    with pytest.raises(gqe.InputError, match="doc-99"):
        index.get(["doc-99"])


def test_metadata_after_changes_and_none(index, tmp_path):
    bare = gqe.Index.build(np.eye(4), "aqe:k=2", tmp_path / "bare")
    assert bare.get([2, 1]) == [{}, {}]
    changed = gqe.Index.build(np.eye(4), "aqe:k=2", tmp_path / "some", metadata={"name": list("abcd")})
    changed.remove([1])
    changed.add(np.eye(4)[1:2], metadata={"name": ["new"]})
    assert [row["name"] for row in changed.get(changed.ids)] == ["a", "c", "d", "new"]


@pytest.mark.parametrize("method", ["embed_query", "get_query_embedding", "encode_query", "encode"])
def test_embedders_of_other_libraries(method):
    np.testing.assert_allclose(embed_query(Embedder(method), QUERY), embed(QUERY), rtol=1e-6)
    with pytest.raises(gqe.InputError, match="embedder: expected a function of a text"):
        embed_query(3, QUERY)
    with pytest.raises(gqe.InputError, match="expected a vector for a text, got shape"):
        embed_query(lambda text: [embed(text)], QUERY)


def test_langchain(index, wrapped, expected):
    pytest.importorskip("langchain_core", reason="langchain is not installed")
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings

    from gqe.integrations.langchain import LangChainRetriever

    class WordEmbeddings(Embeddings):
        def embed_query(self, text):
            return embed(text)

        def embed_documents(self, texts):
            return [embed(text) for text in texts]

    retriever = LangChainRetriever(target=index, embedder=WordEmbeddings(), k=5)
    found = retriever.invoke(QUERY)
    assert [document.id for document in found] == expected.ids.tolist()
    assert [document.page_content for document in found] == texts_of(expected.ids)
    assert [document.metadata["number"] for document in found] == [
        TEXTS.index(document.page_content) for document in found
    ]
    np.testing.assert_allclose([document.metadata["score"] for document in found], expected.scores)
    filtered = LangChainRetriever(
        target=index, embedder=embed, search_kwargs={"filter": {"number": {"lt": 3}}}
    )
    assert {document.metadata["number"] for document in filtered.invoke(QUERY)} == {0, 1, 2}
    documents = [Document(page_content=text, metadata={"own": 1}) for text in TEXTS]
    for given in (documents, dict(enumerate(documents)), lambda name: documents[name]):
        found = LangChainRetriever(target=wrapped, embedder=embed, documents=given, k=5).invoke(QUERY)
        assert [document.page_content for document in found] == texts_of(expected.ids)
        assert found[0].metadata == {"own": 1, "score": pytest.approx(expected.scores[0], abs=1e-5)}
    assert documents[0].metadata == {"own": 1}


def test_llama_index(index, wrapped, expected):
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
    from llama_index.core.schema import QueryBundle, TextNode

    from gqe.integrations.llama_index import LlamaIndexRetriever

    found = LlamaIndexRetriever(index, embed, similarity_top_k=5).retrieve(QUERY)
    assert [node.node.node_id for node in found] == expected.ids.tolist()
    assert [node.text for node in found] == texts_of(expected.ids)
    np.testing.assert_allclose([node.score for node in found], expected.scores)
    nodes = [TextNode(text=text, id_=f"node-{i}") for i, text in enumerate(TEXTS)]
    retriever = LlamaIndexRetriever(wrapped, None, nodes, similarity_top_k=5)
    found = retriever.retrieve(QueryBundle(QUERY, embedding=embed(QUERY)))
    assert [node.text for node in found] == texts_of(expected.ids)
    assert found[0].node is nodes[TEXTS.index(found[0].text)]


def test_haystack(index, wrapped, expected):
    pytest.importorskip("haystack", reason="haystack-ai is not installed")
    from haystack import Document, Pipeline, component

    from gqe.integrations.haystack import HaystackRetriever

    @component
    class WordEmbedder:
        @component.output_types(embedding=list[float])
        def run(self, text: str):
            return {"embedding": embed(text)}

    pipeline = Pipeline()
    pipeline.add_component("embedder", WordEmbedder())
    pipeline.add_component("retriever", HaystackRetriever(index, top_k=5))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    found = pipeline.run({"embedder": {"text": QUERY}})["retriever"]["documents"]
    assert [document.id for document in found] == expected.ids.tolist()
    assert [document.content for document in found] == texts_of(expected.ids)
    np.testing.assert_allclose([document.score for document in found], expected.scores)
    documents = [Document(content=text) for text in TEXTS]
    retriever = HaystackRetriever(wrapped, documents, embedder=embed)
    assert [d.content for d in retriever.run(query=QUERY, top_k=5)["documents"]] == texts_of(expected.ids)
    assert documents[0].score is None
    with pytest.raises(gqe.InputError, match="query_embedding: missing; connect a text embedder"):
        HaystackRetriever(wrapped, documents).run(query=QUERY)


def test_documents_that_are_missing_are_told(index, wrapped):
    pytest.importorskip("haystack", reason="haystack-ai is not installed")
    from gqe.integrations.haystack import HaystackRetriever

    for target, documents, message in [
        (wrapped, None, "documents: only an Index or a store keeps them"),
        (wrapped, {}, "documents: they do not hold every id"),
        (wrapped, 3, "documents: expected a dictionary by id, got int"),
        (wrapped, [{"body": text} for text in TEXTS], "has no text; give texts, or dictionaries with 'text'"),
    ]:
        with pytest.raises(gqe.InputError, match=message):
            HaystackRetriever(target, documents).run(query_embedding=embed(QUERY))
    found = HaystackRetriever(wrapped, [{"body": text} for text in TEXTS], text_key="body")
    assert found.run(query_embedding=embed(QUERY), top_k=1)["documents"][0].content == QUERY
