r"""Definitions of WordNet as labelled sentences: those of one kind of thing are a class.

    pip install sentence-transformers
    python scripts/make_definitions.py --wordnet /usr/share/wordnet --model all-MiniLM-L6-v2 --out definitions

WordNet 3.0 is the folder with data.noun and data.verb (Debian: wordnet-base). A definition is embedded by a
model of sentence-transformers, a name or a folder; its class is the direct hypernym. Classes whose members do
not find each other among others are left out. Writes train.npz, val.npz and test.npz, see `labelled_sets`.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from labelled_sets import write_sets

Array = np.ndarray[Any, Any]
# A synset with fewer kinds is no class; of one with more (there are thousands of persons) some are taken.
_FEWEST, _MOST = 6, 150
# Definitions that a class has to be told from when it is judged.
_OTHERS = 6000
_EXAMPLES = re.compile(r'; "')


def main() -> None:
    """Read the command line, embed, write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun and data.verb")
    parser.add_argument("--model", required=True, help="a model of sentence-transformers")
    parser.add_argument("--coherence", type=float, default=0.4, help="least mean precision of a class")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.npz, val.npz, test.npz")
    options = parser.parse_args()

    from sentence_transformers import SentenceTransformer

    texts, labels = definitions(options.wordnet, np.random.default_rng(0))
    encoder = SentenceTransformer(options.model, device="cpu")
    vectors = encoder.encode(texts, batch_size=128, normalize_embeddings=True, show_progress_bar=True)
    embeddings = np.asarray(vectors, dtype=np.float32)
    rows = coherent(embeddings, labels, options.coherence, np.random.default_rng(0))
    print(write_sets(options.out, embeddings[rows], labels[rows]))


def definitions(folder: Path, rng: np.random.Generator) -> tuple[list[str], Array]:
    """Sentences, and the class (n,) of each; a sentence of several kinds is in the smallest of them."""
    texts: dict[str, str] = {}
    kinds: dict[str, list[str]] = defaultdict(list)
    for part, name in (("n", "noun"), ("v", "verb")):
        for line in (folder / f"data.{name}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  "):  # the licence
                continue
            synset, text, hypernyms = parsed(line)
            texts[part + synset] = text
            for hypernym in hypernyms:
                kinds[hypernym].append(part + synset)
    chosen: dict[str, int] = {}
    for label, hypernym in enumerate(sorted(kinds, key=lambda h: (len(kinds[h]), h))):
        members = sorted(set(kinds[hypernym]) - set(chosen))
        if len(members) >= _FEWEST:
            chosen |= {str(member): label for member in rng.permutation(members)[:_MOST]}
    return [texts[synset] for synset in chosen], np.fromiter(chosen.values(), np.int64)


def parsed(line: str) -> tuple[str, str, list[str]]:
    """Number, definition without its examples, and hypernyms (part of speech and number) of a line of data.*.

    Example:
        >>> parsed('00217499 04 n 01 disaster 0 001 @ 00217014 n 0000 | an act; "an example"')
        ('00217499', 'an act', ['n00217014'])
    """
    head, gloss = line.split(" | ", 1)
    fields = head.split()
    start = 4 + 2 * int(fields[3], 16)  # each word takes two fields
    pointers = fields[start + 1 : start + 1 + 4 * int(fields[start])]
    hypernyms = [
        pointers[i + 2] + pointers[i + 1] for i in range(0, len(pointers), 4) if pointers[i] in ("@", "@i")
    ]
    return fields[0], _EXAMPLES.split(gloss.strip())[0].strip(), hypernyms


def coherent(embeddings: Array, labels: Array, least: float, rng: np.random.Generator) -> Array:
    """Rows of the classes whose members find each other: mean average precision among a sample of others."""
    others = rng.permutation(len(labels))[:_OTHERS]
    kept = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        strange = others[labels[others] != label]
        against = np.sort(embeddings[members] @ embeddings[strange].T, axis=1)
        among = embeddings[members] @ embeddings[members].T
        precisions = []
        for own, row in enumerate(against):
            found = -np.sort(-np.delete(among[own], own))
            before = len(row) - np.searchsorted(row, found)
            rank = np.arange(1, len(found) + 1)
            precisions.append(np.mean(rank / (rank + before)))
        if np.mean(precisions) >= least:
            kept.append(members)
    return np.concatenate(kept)


if __name__ == "__main__":
    main()
