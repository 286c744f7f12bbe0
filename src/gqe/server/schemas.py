"""What requests and answers look like, for checking and for the OpenAPI schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

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

# Of a list in a request, whatever `Settings` allow.
_LONGEST = 100_000
# Fields of an object in a request; none has as many.
_MOST_FIELDS = 32


def _at_most(count: int) -> BeforeValidator:
    """Refuse an object with too many keys before any of them is looked at: each may be an error."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"{len(value)} keys, at most {count} are taken")
        return value

    return BeforeValidator(check)


Whole = Annotated[StrictInt, Field(ge=0, le=2**63 - 1)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
ItemId = Whole | Text
Number = Annotated[float, Field(strict=True, ge=-1e30, le=1e30, allow_inf_nan=False)]
# A list ends at its first error: all of them would take hundreds of times the memory of the request.
Vector = Annotated[list[Number], Field(min_length=1, max_length=65_536, fail_fast=True)]
Vectors = Annotated[list[Vector], Field(min_length=1, max_length=_LONGEST, fail_fast=True)]
Ids = Annotated[list[ItemId], Field(min_length=1, max_length=_LONGEST, fail_fast=True)]
K = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Weight = Annotated[float, Field(strict=True, gt=0, le=1000, allow_inf_nan=False)]
# What is written otherwise is refused by `expanders.named`, which says what is offered.
MethodName = Annotated[
    StrictStr,
    Field(max_length=80, json_schema_extra={"pattern": r"^[a-z]+(-[a-z]+)*(:k=[1-9][0-9]{0,3})?$"}),
]
RerankerName = Annotated[StrictStr, Field(min_length=1, max_length=80)]
Column = Annotated[StrictStr, Field(max_length=1000)]
Scalar = (
    StrictBool
    | Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
    | Annotated[StrictStr, Field(max_length=1000)]
)
Bounds = Annotated[
    dict[Literal["gt", "gte", "lt", "lte"], Scalar], Field(min_length=1, max_length=4), _at_most(4)
]
Values = Annotated[list[Scalar], Field(max_length=1000, fail_fast=True)]
Filter = Annotated[dict[Column, Scalar | Values | Bounds], Field(max_length=16), _at_most(16)]
Metadata = Annotated[
    dict[Column, Annotated[list[Scalar | None], Field(max_length=_LONGEST, fail_fast=True)]],
    Field(max_length=1000),
    _at_most(1000),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            raise ValueError(f"{len(value)} fields, more than there are; /openapi.json lists them")
        return value


class Example(_Strict):
    """Something liked or disliked: an item or a vector, and how much it counts."""

    id: ItemId | None = None
    vector: Vector | None = None
    weight: Weight = 1.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.id is None) == (self.vector is None):
            raise ValueError("give an id or a vector, and not both")
        return self


Examples = Annotated[list[Example], Field(max_length=_LONGEST, fail_fast=True)]


class How(_Strict):
    """How to search."""

    k: K = 10
    expand: StrictBool = Field(True, description="False searches with the query as it is.")
    method: MethodName = Field(
        "index", description="The index's own expansion, or another that /v1/about names, with :k=K."
    )
    rerank: RerankerName | None = Field(None, description="Reorder the results; /v1/about names re-rankers.")
    exact: StrictBool = Field(False, description="Search an approximate index exactly.")
    filter: Filter | None = Field(None, description="{column: value, values, or bounds such as {gte: 2020}}.")


class Ask(_Strict):
    """What to search for: vectors, items by id, or examples. One of the three."""

    vectors: Vectors | None = None
    ids: Ids | None = Field(None, description="Items to search with; each is left out of its own results.")
    like: Annotated[Examples, Field(min_length=1)] | None = Field(
        None, description="Examples of what is wanted: one query is made of all of them."
    )
    dislike: Examples = Field([], description="Examples of what is not wanted; not among the results.")
    dislike_weight: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] = 0.5

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.vectors, self.ids, self.like)) != 1:
            raise ValueError("give one of vectors, ids and like")
        if self.dislike and self.like is None:
            raise ValueError("dislike needs like: at least one example of what is wanted")
        return self


class SearchRequest(Ask, How):
    """A search."""


class ExplainRequest(Ask):
    """A query to explain: exactly one vector or id, or examples."""

    method: MethodName = "index"
    first: Annotated[StrictInt, Field(ge=1, le=64)] = 12
    second: Annotated[StrictInt, Field(ge=0, le=16)] = 4


class AddRequest(_Strict):
    """Items to add. Ids may be left out where items have numbers."""

    vectors: Vectors
    ids: Annotated[list[ItemId], Field(max_length=_LONGEST, fail_fast=True)] | None = None
    metadata: Metadata | None = None


class RemoveRequest(_Strict):
    """Items to remove, all of them in the index."""

    ids: Ids


class Hits(BaseModel):
    """Results of one query, best first."""

    ids: list[ItemId]
    scores: list[float]


class SearchResponse(BaseModel):
    """Results, one entry for each query."""

    method: str
    results: list[Hits]


class GraphNode(BaseModel):
    """An item, or the query (id null, hop 0)."""

    id: ItemId | None
    hop: int
    weight: float


class GraphEdge(BaseModel):
    """`source` listens to `target` (numbers of nodes) with this share of its weights."""

    source: int
    target: int
    weight: float


class ExplainResponse(BaseModel):
    """Who gave how much weight, and the neighbourhood as a graph."""

    method: str
    items_with_weight: int
    nodes: list[GraphNode]
    edges: list[GraphEdge]


class DescribeResponse(BaseModel):
    """The vector of a picture."""

    vector: list[float]


class ItemsResponse(BaseModel):
    """Ids of items."""

    ids: list[ItemId]


class ChangeResponse(BaseModel):
    """A change that is safely stored."""

    ids: list[ItemId]
    items: int
    version: int


class About(BaseModel):
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
    read_only: bool
    examples: list[ItemId]


class State(BaseModel):
    """Whether the service lives, or can answer."""

    status: str


class Problem(BaseModel):
    """An error, as RFC 9457 describes it."""

    type: str
    title: str
    status: int
    detail: str


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the schema."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _MEANING[status], "content": content} for status in statuses}


_MEANING = {
    400: "The body cannot be read",
    401: "A token is needed",
    403: "Not allowed",
    404: "There is no such thing",
    408: "The request did not arrive in time",
    413: "The request is too large",
    415: "Not a kind of content that is understood here",
    422: "Something given cannot be used",
    429: "Too many requests",
    431: "Too many headers, or too long",
    503: "Busy, ending, or out of reach; come back later",
    507: "No room is left on the disk",
}
