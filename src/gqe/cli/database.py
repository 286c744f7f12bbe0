"""The databases of `gqe search`, `expand` and `explain`: a file of vectors, an index or a store alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer
from typer import Argument, Option

from gqe.cli.common import DatabaseKey, Device, Json, QueriesKey, Recall, Seed, read_ids
from gqe.errors import InputError

if TYPE_CHECKING:
    from gqe.methods import Method

DEFAULT_METHOD = "universal"

Place = Annotated[
    str,
    Argument(
        metavar="DATABASE",
        help="File of vectors (npy, npz, fvecs, fbin, hdf5...), FAISS index (.faiss), folder of an index,"
        " or address of a vector database (postgresql://..., qdrant://..., milvus://..., lancedb:///...,"
        " index:FOLDER).",
        show_default=False,
    ),
]


class OpenedDatabase(NamedTuple):
    """An opened database.

    Attributes:
        name: for messages and titles.
        engine: a fitted Expander, a FaissIndex, an Index or a Connection: all have the same methods.
        about: what it is, for JSON.
        options: arguments of every call of the engine.
        items: what counts the items.
        dimension: of the vectors.
        id_kind: "int" or "text".
        folder: of an index, or None.
        file: of vectors or of FAISS, or None.
    """

    name: str
    engine: Any
    about: dict[str, Any]
    options: dict[str, Any]
    items: Sized
    dimension: int
    id_kind: str
    folder: Path | None = None
    file: Path | None = None

    @property
    def method(self) -> str:
        """The name of what expands queries."""
        if self.file is not None:
            return str(getattr(self.engine, "expander", self.engine).name)
        return str((self.options.get("expander") or self.engine.expander).name)

    def read_exclude(self, path: Path | None, num_queries: int) -> list[Any] | None:
        """The ids of --exclude, one for each query."""
        if path is None:
            return None
        ids = list(read_ids(path, as_text=self.id_kind == "text"))
        if len(ids) != num_queries:
            raise InputError(f"{path}: {len(ids)} ids for {num_queries} queries; give one for each")
        return ids


class DatabaseOptions(NamedTuple):
    """Options that `gqe search`, `expand` and `explain` share, see `with_database_options`."""

    method: Annotated[
        str | None,
        Option(
            "--method",
            "-m",
            help=f"With a file: method and settings, such as alpha-g:k=6 ({DEFAULT_METHOD} if left out). With"
            " a vector database: what is attached, with other rounds or contrast, or a method of one level."
            " An index has its own.",
        ),
    ] = None
    rounds: Annotated[
        int | None, Option("--rounds", help="How often queries are expanded; by default as the method says.")
    ] = None
    exact: Annotated[
        bool, Option("--exact", help="Compare with every item, also where searches are approximate.")
    ] = False
    exclude: Annotated[
        Path | None,
        Option(
            "--exclude",
            metavar="IDS",
            help="One id for each query that it neither reads nor finds: a text file, one per line, or .npy.",
        ),
    ] = None
    database_key: DatabaseKey = None
    queries_key: QueriesKey = None
    recall: Recall = None
    seed: Seed = 0
    device: Device = "auto"
    as_json: Json = False

    @contextmanager
    def open(self, place: str, method: Method | None, queries: Sized | None) -> Iterator[OpenedDatabase]:
        """Open what a place names; a re-ranker of the method is left to the caller.

        Args:
            place: a file of vectors, the folder of an index, or the address of a store.
            method: None for universal with a file, for its own with an index or store.
            queries: a file of fewer vectors is warned of, since both may have been swapped.
        """
        from gqe.index import Index
        from gqe.integrations.faiss import wrap
        from gqe.methods import parse_method
        from gqe.models import from_method
        from gqe.stores import connect
        from gqe.stores.address import SCHEMES

        about: dict[str, Any]
        is_store = "://" in place or (":" in place and place.partition(":")[0].lower() in SCHEMES)
        is_faiss = Path(place).suffix.lower() == ".faiss"
        if is_store or is_faiss or Path(place).is_dir():
            for option, value in (("--database-key", self.database_key), ("--recall", self.recall)):
                if value is not None:
                    raise InputError(f"{option}: is for a file of vectors; leave it out")
        if is_store:
            options = {} if method is None else {"expander": from_method(method.replace(reranking=None))}
            with connect(place, device=self.device) as items:
                about = {"store": items.address}
                yield OpenedDatabase(
                    items.address, items, about, options, items, items.dimension, items.id_kind
                )
        elif Path(place).is_dir():
            index = Index.open(place, device=self.device)
            if method is not None:
                raise InputError(
                    f"{place}: an index has its own method, here {index.expander.name}; leave -m out, or"
                    f" build another index with {method}"
                )
            about = {"index": place, "version": index.version}
            yield OpenedDatabase(
                index.path.name, index, about, {}, index, index.dimension, index.id_kind, folder=index.path
            )
        elif is_faiss:
            method = parse_method(DEFAULT_METHOD) if method is None else method
            expander = from_method(method.replace(reranking=None, dba=False))
            wrapped = wrap(place, method=expander, device=self.device)
            wrapped.target.filename = place
            about = method.to_dict()
            yield OpenedDatabase(
                Path(place).name, wrapped, about, {}, wrapped, wrapped.d, "int", file=Path(place)
            )
        else:
            from gqe.formats import read_vectors

            method = parse_method(DEFAULT_METHOD) if method is None else method
            vectors = read_vectors(place, key=self.database_key)
            if queries is not None and len(queries) > len(vectors):
                sizes = f"{len(queries)} queries for a database of {len(vectors)} vectors"
                typer.echo(f"gqe: {sizes}; DATABASE comes first, then QUERIES", err=True)
            expander = from_method(method.replace(reranking=None))
            expander.fit(vectors, recall=self.recall, seed=self.seed, device=self.device)
            expander.target.swap_warned = True  # checked above
            about = method.to_dict()
            yield OpenedDatabase(
                Path(place).name, expander, about, {}, vectors, vectors.shape[1], "int", file=Path(place)
            )


def with_database_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its argument `options`, a `DatabaseOptions`, as options of its own."""
    hints = get_type_hints(DatabaseOptions, include_extras=True)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in DatabaseOptions._field_defaults.items()
    ]
    usual = signature(command, eval_str=True)
    own = [parameter for parameter in usual.parameters.values() if parameter.name != "options"]

    @wraps(command)
    def run(**values: Any) -> None:
        options = DatabaseOptions(**{name: values.pop(name) for name in DatabaseOptions._fields})
        command(**values, options=options)

    run.__signature__ = usual.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return run
