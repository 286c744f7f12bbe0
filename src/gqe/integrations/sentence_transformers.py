"""Texts to embeddings by sentence-transformers: `pip install 'gqe[text]'`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import Array, existing_file, one_line, optional_module, wrap_parse_errors

IN_INDEX = "text-model.json"
"""Name of the record inside an index."""
_FORMAT, _VERSION = "gqe text model", 1


class TextModel:
    """A model of sentence-transformers.

    Args:
        model: its name on the Hub, its folder, or a SentenceTransformer.
        device: where it runs.
    """

    def __init__(self, model: Any, device: str = "auto") -> None:
        self.model = model
        if isinstance(model, str | os.PathLike):
            library = _library()
            place = Path(model)
            self.name = str(place.resolve()) if place.is_dir() else str(model)
            try:
                with _quiet_logs():
                    self.model = library.SentenceTransformer(
                        self.name, device=None if device == "auto" else device
                    )
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                raise InputError(
                    f"model: {model} cannot be loaded: {one_line(error)}; give the name or the folder of a"
                    " sentence-transformers model"
                ) from None
        else:
            self.name = type(model).__name__

    def embed_documents(self, texts: Sequence[str]) -> Array:
        """(n, d) float32 embeddings of unit length, of what is searched."""
        return self._embed("encode_document", texts)

    def embed_queries(self, texts: Sequence[str]) -> Array:
        """(m, d) float32 embeddings of unit length, of what is searched for."""
        return self._embed("encode_query", texts)

    def _embed(self, method: str, texts: Sequence[str]) -> Array:
        # Models with prompts have one for queries and one for documents; older versions know only `encode`.
        encode = getattr(self.model, method, self.model.encode)
        found = encode(list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)


def write_model_name(index: str | os.PathLike[str], name: str) -> None:
    """Note in the folder of an index which model its texts were embedded by."""
    content = {"format": _FORMAT, "version": _VERSION, "model": name}
    with atomic_path(Path(index) / IN_INDEX) as temporary:
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")


def read_model_name(index: str | os.PathLike[str]) -> str | None:
    """The model noted in the folder of an index, if any."""
    path = Path(index) / IN_INDEX
    if not path.exists():
        return None
    with wrap_parse_errors(existing_file(path), "record of a text model"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT or content["version"] != _VERSION:
            raise InputError(f"{path}: not a record of a text model; give --model")
        return str(content["model"])


def read_texts(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file, each a text; empty ones are refused."""
    found = existing_file(path)
    with wrap_parse_errors(found, "UTF-8 text file"):
        texts = found.read_text(encoding="utf-8").splitlines()
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise InputError(f"{path}: line {number} is empty; write one text in each line")
    return texts


def with_texts(metadata: Any, texts: Sequence[str]) -> Any:
    """Metadata with the column `text`, unless it has one."""
    from gqe.index.metadata import as_metadata

    if metadata is None:
        return {"text": list(texts)}
    table = as_metadata(metadata, len(texts))
    if "text" in table.column_names:
        return table
    return table.append_column("text", optional_module("pyarrow", "metadata").array(texts))


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Without the progress bars of loading, where nobody sits at a terminal."""
    logs = import_module("transformers.utils.logging")
    if (sys.stderr is not None and sys.stderr.isatty()) or not logs.is_progress_bar_enabled():
        yield
        return
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.enable_progress_bar()


def _library() -> Any:
    try:
        return import_module("sentence_transformers")
    except ImportError as error:
        raise InputError("model: texts need sentence-transformers: pip install 'gqe[text]'") from error
