"""Requests and responses of the API, for validation and for the OpenAPI schema."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)
from typing_extensions import TypedDict

# Of a list in a request, whatever `Settings` allow.
_MAX_LENGTH = 100_000
# Fields of an object in a request; no model has as many.
_MAX_FIELDS = 32


def _max_keys(count: int) -> BeforeValidator:
    """Refuse an object with too many keys before any of them is validated: each may be an error."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"{len(value)} keys, at most {count} are taken")
        return value

    return BeforeValidator(check)


ItemId = (
    Annotated[StrictInt, Field(ge=0, le=2**63 - 1)]
    | Annotated[StrictStr, Field(min_length=1, max_length=1000)]
)
Number = Annotated[float, Field(strict=True, ge=-1e30, le=1e30, allow_inf_nan=False)]
# A list ends at its first error: all of them would take hundreds of times the memory of the request.
Vector = Annotated[list[Number], Field(min_length=1, max_length=65_536, fail_fast=True)]
Vectors = Annotated[list[Vector], Field(min_length=1, max_length=_MAX_LENGTH, fail_fast=True)]
Ids = Annotated[list[ItemId], Field(min_length=1, max_length=_MAX_LENGTH, fail_fast=True)]
# What is written otherwise is refused by `expanders.parse_requested`, which says what is offered.
METHOD_PATTERN = r"([a-z]+(?:-[a-z]+)*)((?::[a-z]+=[0-9.]{1,10})*)(?:\+([a-z]+(?:-[a-z]+)*))?"
MethodName = Annotated[StrictStr, Field(max_length=80, json_schema_extra={"pattern": f"^{METHOD_PATTERN}$"})]
Column = Annotated[StrictStr, Field(max_length=1000)]
Scalar = (
    StrictBool
    | Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
    | Annotated[StrictStr, Field(max_length=1000)]
)
Bounds = Annotated[
    dict[Literal["gt", "gte", "lt", "lte"], Scalar], Field(min_length=1, max_length=4), _max_keys(4)
]
Values = Annotated[list[Scalar], Field(max_length=1000, fail_fast=True)]
Filter = Annotated[dict[Column, Scalar | Values | Bounds], Field(max_length=16), _max_keys(16)]
Metadata = Annotated[
    dict[Column, Annotated[list[Scalar | None], Field(max_length=_MAX_LENGTH, fail_fast=True)]],
    Field(max_length=1000),
    _max_keys(1000),
]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MAX_FIELDS:
            raise ValueError(f"{len(value)} fields, more than there are; /openapi.json lists them")
        return value


class QueryExample(_StrictModel):
    """A liked or disliked example: an item or a vector, and its weight."""

    id: ItemId | None = None
    vector: Vector | None = None
    weight: Annotated[float, Field(strict=True, gt=0, le=1000, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.id is None) == (self.vector is None):
            raise ValueError("give an id or a vector, and not both")
        return self


Examples = Annotated[list[QueryExample], Field(max_length=_MAX_LENGTH, fail_fast=True)]


class SearchParameters(_StrictModel):
    """How to search."""

    k: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10
    expand: StrictBool = Field(True, description="False searches with the query itself.")
    method: MethodName = Field(
        "index",
        description="The index's own expansion, or another one listed by /v1/about, with settings and a"
        " re-ranker as on the command line: index:rounds=2, alpha:k=8:alpha=1+reciprocal.",
    )
    rerank: Annotated[StrictStr, Field(min_length=1, max_length=80)] | None = Field(
        None, description="Reorder the results; /v1/about lists the re-rankers."
    )
    exact: StrictBool = Field(False, description="Search an approximate index exactly.")
    filter: Filter | None = Field(None, description="{column: value, values, or bounds such as {gte: 2020}}.")
    with_metadata: StrictBool = Field(
        False, description="Also give what is kept of each result: metadata, payloads, columns."
    )


class QueryParameters(_StrictModel):
    """What to search for: vectors, items by id, or examples. One of the three."""

    vectors: Vectors | None = None
    ids: Ids | None = Field(None, description="Items to search with; each is excluded from its own results.")
    like: Annotated[Examples, Field(min_length=1)] | None = Field(
        None, description="Examples of what is wanted, combined into one query."
    )
    dislike: Examples = Field([], description="Examples of what is not wanted; excluded from the results.")
    dislike_weight: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] = 0.5

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(value is not None for value in (self.vectors, self.ids, self.like)) != 1:
            raise ValueError("give one of vectors, ids and like")
        if self.dislike and self.like is None:
            raise ValueError("dislike needs like: at least one example of what is wanted")
        return self


class SearchRequest(QueryParameters, SearchParameters):
    """A search."""


class ExplainRequest(QueryParameters):
    """A query to explain: exactly one vector or id, or examples."""

    method: MethodName = "index"
    first: Annotated[StrictInt, Field(ge=1, le=64)] = Field(12, description="Neighbours of the query.")
    second: Annotated[StrictInt, Field(ge=0, le=16)] = Field(4, description="Neighbours of each of those.")


class EmbedRequest(_StrictModel):
    """A text to search with."""

    text: Annotated[StrictStr, Field(min_length=1, max_length=10_000)]


class DescribeItemsRequest(_StrictModel):
    """Items to describe, all of them in the index."""

    ids: Ids


class AddRequest(_StrictModel):
    """Items to add. Ids may be omitted where items are numbered."""

    vectors: Vectors
    ids: Annotated[list[ItemId], Field(max_length=_MAX_LENGTH, fail_fast=True)] | None = None
    metadata: Metadata | None = None


class RemoveRequest(_StrictModel):
    """Items to remove, all of them in the index."""

    ids: Ids


class Hits(TypedDict):
    """Results of one query, best first."""

    ids: list[ItemId]
    scores: list[float]
    metadata: NotRequired[list[dict[str, Any]]]


class SearchResponse(TypedDict):
    """Results, one entry per query."""

    method: str
    results: list[Hits]


class GraphNode(TypedDict):
    """An item, or the query (id null, hop 0), with its weight in the expanded query."""

    id: ItemId | None
    hop: int
    weight: float


class GraphEdge(TypedDict):
    """The weight of neighbour `target` in the aggregation of `source` (positions in `nodes`)."""

    source: int
    target: int
    weight: float


class ExplainResponse(TypedDict):
    """Neighbour weights of an expanded query, as a graph of two hops."""

    method: str
    items_with_weight: int
    nodes: list[GraphNode]
    edges: list[GraphEdge]


class DescribeResponse(TypedDict):
    """The vector of a picture or a text."""

    vector: list[float]


class ItemDescription(TypedDict):
    """What is known of an item. Items of the same label are right results for each other; null if unknown."""

    id: ItemId
    metadata: dict[str, Any]
    label: ItemId | None


class ItemDescriptionsResponse(TypedDict):
    """Items in the order of the request."""

    items: list[ItemDescription]


class ItemsResponse(TypedDict):
    """Ids of items."""

    ids: list[ItemId]


class ChangeResponse(TypedDict):
    """A stored change: its items, how many items there are now, and the version that has it."""

    ids: list[ItemId]
    items: int
    version: int


class About(TypedDict):
    """What this service offers."""

    title: str
    items: int
    dimension: int
    version: int
    id_kind: Literal["int", "text"]
    expansion: str
    methods: list[str]
    methods_with_k: list[str]
    rerankers: list[str]
    most_neighbors: int
    most_k: int
    pictures: bool
    describes: bool
    embeds: bool
    labelled: bool
    read_only: bool
    examples: list[ItemId]


class State(TypedDict):
    """Whether the service runs, or is ready."""

    status: str


class Problem(TypedDict):
    """An error, as RFC 9457 describes it."""

    type: str
    title: str
    status: int
    detail: str


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the schema."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
