from __future__ import annotations

from pathlib import Path

import numpy as np
from make_definitions import coherent, definitions, parsed

LICENCE = "  1 This software and database is being provided to you, the LICENSEE\n"


def synset(number: int, hypernym: str, gloss: str) -> str:
    return f"{number:08d} 03 n 02 word 0 other_word 0 002 {hypernym} ~ 00000999 n 0000 | {gloss}  \n"


def test_a_line_of_wordnet() -> None:
    line = synset(7, "@i 00000042 n 0000", 'a tall tree; with needles; "firs grow here"; "and there"')
    assert parsed(line) == ("00000007", "a tall tree; with needles", ["n00000042"])


def test_classes_are_direct_hypernyms_with_enough_kinds(tmp_path: Path) -> None:
    many = [synset(i, "@ 00000100 n 0000", f"the tree {i}") for i in range(8)]
    few = [synset(i, "@ 00000200 n 0000", f"the boat {i}") for i in range(20, 23)]
    (tmp_path / "data.noun").write_text(LICENCE + "".join(many + few), encoding="latin-1")
    verbs = [synset(i, "@ 00000100 v 0000", f"to walk {i}") for i in range(6)]
    (tmp_path / "data.verb").write_text(LICENCE + "".join(verbs), encoding="latin-1")
    texts, labels = definitions(tmp_path, np.random.default_rng(0))
    assert sorted(texts) == sorted([f"the tree {i}" for i in range(8)] + [f"to walk {i}" for i in range(6)])
    trees = {label for text, label in zip(texts, labels, strict=True) if "tree" in text}
    walks = {label for text, label in zip(texts, labels, strict=True) if "walk" in text}
    assert len(trees) == len(walks) == 1  # a number means one noun and one verb
    assert trees != walks


def test_only_classes_whose_members_find_each_other_stay() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    vectors = rng.normal(size=(200, 16))
    vectors[labels < 8] += 6 * rng.normal(size=(20, 16))[labels[labels < 8]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    kept = coherent(vectors, labels, 0.5, rng)
    np.testing.assert_array_equal(kept, np.flatnonzero(labels < 8))
