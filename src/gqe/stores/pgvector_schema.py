"""What a table in PostgreSQL looks like, checked once when it is opened."""

from __future__ import annotations

from typing import Any, NamedTuple

from gqe.errors import InputError


class Schema(NamedTuple):
    """What is known of a table.

    Attributes:
        columns: their names.
        id_type: SQL type of the ids.
        vector_type: "vector" or "halfvec".
        dimension: of the vectors.
        metric: "cosine", or "dot" where only an index for inner products is there.
        wrong_index: what is wrong with the only index there is, and the remedy; empty if nothing.
        iterative: whether scans of an index can go on until there are enough rows (pgvector 0.8).
    """

    columns: list[str]
    id_type: str
    vector_type: str
    dimension: int
    metric: str
    wrong_index: str
    iterative: bool


_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, NULL), t.typname, a.atttypmod, a.attnum
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_UNIQUE = """
    SELECT 1 FROM pg_index
    WHERE indrelid = %s::regclass AND indkey[0] = %s
    AND indisunique AND indnkeyatts = 1 AND indpred IS NULL"""
_INDEXES = """
    SELECT c.relname, o.opcname
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
    JOIN pg_opclass o ON o.oid = i.indclass[0]
    WHERE i.indrelid = %s::regclass AND i.indkey[0] = %s
    AND m.amname IN ('hnsw', 'ivfflat') AND i.indisvalid"""


def read_schema(connection: Any, options: dict[str, str], where: str) -> Schema:
    """Look a table up; whatever is missing is one line with the remedy."""
    version = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if version is None:
        raise InputError(f"{where}: the database lacks pgvector; run CREATE EXTENSION vector in it")
    name = ".".join('"' + part.replace('"', '""') + '"' for part in options["table"].split("."))
    if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is None:
        raise InputError(f"{where}: no table {options['table']!r}; check table= in the address")
    columns = {row[0]: row[1:] for row in connection.execute(_COLUMNS, (name,)).fetchall()}
    for option in ("id", "vector"):
        if options[option] not in columns:
            there = ", ".join(columns)
            raise InputError(f"{where}: no column {options[option]!r}; there are {there}; give {option}=NAME")
    id_type, _, _, id_number = columns[options["id"]]
    vector_shown, vector_type, dimension, number = columns[options["vector"]]
    if vector_type not in ("vector", "halfvec"):
        raise InputError(
            f"{where}: column {options['vector']!r} is {vector_shown}; it must be vector or halfvec"
        )
    if not connection.execute(_UNIQUE, (name, id_number)).fetchone():
        raise InputError(
            f"{where}: ids in column {options['id']!r} may repeat; run ALTER TABLE {options['table']}"
            f" ADD PRIMARY KEY ({options['id']})"
        )
    if dimension < 1:
        column = '"' + options["vector"].replace('"', '""') + '"'
        row = connection.execute(
            f"SELECT vector_dims({column}) FROM {name} WHERE {column} IS NOT NULL LIMIT 1"
        ).fetchone()
        if row is None:
            raise InputError(f"{where}: column {options['vector']!r} has no dimension yet; declare vector(d)")
        dimension = row[0]
    indexes = dict(connection.execute(_INDEXES, (name, number)).fetchall())
    kinds = {opclass.removeprefix(f"{vector_type}_") for opclass in indexes.values()}
    wrong = ""
    if kinds and not kinds & {"cosine_ops", "ip_ops"}:
        wrong = (
            f"its index {next(iter(indexes))} does not serve cosines; run CREATE INDEX ON {options['table']}"
            f" USING hnsw ({options['vector']} {vector_type}_cosine_ops)"
        )
    metric = "dot" if "ip_ops" in kinds and "cosine_ops" not in kinds else "cosine"
    major, minor = (int(part) for part in version[0].split(".")[:2])
    return Schema(list(columns), id_type, vector_type, dimension, metric, wrong, (major, minor) >= (0, 8))
