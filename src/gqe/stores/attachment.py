"""What is known about levels that are attached to a store: the model, the space, and how far the work is."""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gqe.errors import InputError
from gqe.model_files import Model, load_model, save_model
from gqe.models import Expander
from gqe.neighbors.updating import SPARE_NEIGHBORS
from gqe.query_options import QueryOptions

FORMAT = 2
STATE = "state"
# Of a model's files; as base64 a piece stays below what every engine takes as one text.
_PIECE = 45_000
_FILES = ("config.json", "model.safetensors")

# How far the work is: lists of a first attachment are being written; lists follow changed items; all levels
# are out of date; levels are being computed; all is done.
LISTS, CHANGES, ANEW, LEVELS, READY = "lists", "changes", "anew", "levels", "ready"


@dataclass(frozen=True)
class Attachment:
    """The state of an attachment.

    Attributes:
        expander: the model; its levels 1..L-1 are what is attached.
        dimension: of the vectors.
        width: length of the neighbour lists.
        exact: whether neighbours are searched for exactly.
        stage: how far the work is.
        cursor: the last id that the stage is through with, or None.
        items: how many items there were when the space was measured.
        backgrounds: of levels 0.. as far as they are measured, see `gqe.statistics`.
        quantiles: how near neighbours usually are; empty where no aggregator reads it.
        model: checksum of the model, to tell whether another one is being attached.
        complete: whether all levels were there once; later changes leave them old, not missing.
    """

    expander: Expander
    dimension: int
    width: int
    exact: bool
    stage: str
    cursor: int | str | None
    items: int
    backgrounds: tuple[tuple[float, ...], ...]
    quantiles: tuple[tuple[float, ...], ...]
    model: str
    complete: bool

    @property
    def depth(self) -> int:
        """L."""
        return len(self.expander.stack)

    @property
    def graph_k(self) -> int:
        """How many neighbours aggregators read."""
        return max(level.graph_k for level in self.expander.stack)

    @property
    def needs_context(self) -> bool:
        """Whether any aggregator reads what is usual in the space."""
        return any(level.needs_context for level in self.expander.stack)

    def replace(self, **changes: Any) -> Attachment:
        """A copy with other values."""
        return replace(self, **changes)


def new_attachment(expander: Expander, dimension: int, exact: bool) -> tuple[Attachment, dict[str, str]]:
    """An attachment at its beginning, and the texts of its model to be kept in the store."""
    if expander.reranking is not None:
        raise InputError(
            f"expander: {expander.name}: a store keeps no re-ranker; leave it out and search with"
            f" rerank={str(expander.reranking)!r}"
        )
    texts, checksum = _pack(expander)
    width = max(level.graph_k for level in expander.stack) + SPARE_NEIGHBORS
    return Attachment(expander, dimension, width, exact, LISTS, None, 0, (), (), checksum, False), texts


def reads_levels(expander: Expander) -> bool:
    """Whether an expander reads levels or lists, which have to be attached."""
    return len(expander.stack) > 1 or any(level.needs_context for level in expander.stack)


def is_same_stack(expander: Expander, other: Expander) -> bool:
    """Whether two expanders have the same levels, whatever their options of queries."""
    return _pack(Expander(expander.stack))[1] == _pack(Expander(other.stack))[1]


def single_level_attachment(expander: Expander, dimension: int) -> Attachment:
    """What serves an expander of one level, which needs nothing that is attached."""
    if reads_levels(expander):
        raise InputError(
            f"expander: {expander.name} reads levels or lists, which have to be attached; attach it, or give"
            " one of a single level such as alpha"
        )
    width = max(level.graph_k for level in expander.stack) + SPARE_NEIGHBORS
    return Attachment(expander, dimension, width, False, READY, None, 0, (), (), "", True)


def state_text(attachment: Attachment) -> dict[str, str]:
    """What changes of an attachment, as one text."""
    state = {
        "format": FORMAT,
        **{key: value for key, value in vars(attachment).items() if key not in ("expander", "quantiles")},
        "landscape": attachment.quantiles,
        "name": attachment.expander.name,
        "k": max(level.k for level in attachment.expander.stack),
        "levels": attachment.depth,
    }
    return {STATE: json.dumps(state)}


def attachment_from(texts: Mapping[str, str], where: str) -> Attachment | None:
    """The attachment whose texts these are; None if there are none."""
    if STATE not in texts:
        return None
    damaged = InputError(
        f"{where}: what is kept about the attached levels is damaged; attach again with --anew"
    )
    try:
        state = json.loads(texts[STATE])
        if state["format"] != FORMAT:
            raise InputError(
                f"{where}: attached by another version of gqe (format {state['format']}); update gqe, or"
                " attach again with --anew"
            )
        expander, checksum = _unpack(texts, damaged)
        if checksum != state["model"]:
            raise damaged
        return Attachment(
            expander,
            int(state["dimension"]),
            int(state["width"]),
            bool(state["exact"]),
            str(state["stage"]),
            state["cursor"],
            int(state["items"]),
            tuple(map(tuple, state["backgrounds"])),
            tuple(map(tuple, state["landscape"])),
            checksum,
            bool(state["complete"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged from None


def _pack(expander: Expander) -> tuple[dict[str, str], str]:
    """The files of a model in pieces of text, and its checksum."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, Model(expander.stack, expander.name, {}, expander.query_options))
        content = {name: (Path(folder) / name).read_bytes() for name in _FILES}
    texts = {}
    for name, data in content.items():
        for place, start in enumerate(range(0, len(data), _PIECE)):
            texts[f"{name}.{place:05d}"] = base64.b64encode(data[start : start + _PIECE]).decode()
    config = json.loads(content["config.json"])
    return texts, _checksum(config)


def _unpack(texts: Mapping[str, str], damaged: InputError) -> tuple[Expander, str]:
    with tempfile.TemporaryDirectory() as folder:
        for name in _FILES:
            pieces = [texts[key] for key in sorted(texts) if key.startswith(f"{name}.")]
            try:
                data = b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
            except binascii.Error:
                raise damaged from None
            (Path(folder) / name).write_bytes(data)
        try:
            model = load_model(folder)
        except InputError:
            raise damaged from None
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return Expander(model.stack, model.name, query_options=model.query_options), _checksum(config)


def _checksum(config: dict[str, Any]) -> str:
    """Of weights and settings."""
    import hashlib

    options = QueryOptions.from_config(config).to_config()  # defaults add nothing
    parts = [config["levels"], config["checksum"], *options.values()]
    settings = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(settings.encode(), digest_size=16).hexdigest()
