"""Contextual similarity aggregation: results are compared by their similarities to the same anchors.

Ouyang, Wu, Wang, Zhou, Li: "Contextual Similarity Aggregation with Self-attention for Visual Re-ranking",
NeurIPS 2021.

- The anchors of a query are itself and its first results.
- The query and each result to be ranked are described by their cosines to all anchors, and by nothing else:
  a model fits embeddings of any dimension.
- A linear map brings these affinities to the model's width, and a transformer encoder lets query and results
  refine each other. There are no positions: the order of the anchors is in the affinities already.
- A result's score is the cosine of its refined features and the query's.

The encoder that ships with the package was trained on pictures and sentences (`scripts/train_csa.py`);
`gqe.training.csa` trains another one. Nothing is computed for the database.

Where this differs from the paper, or the paper leaves a choice:

- The paper has 512 anchors and a width of 768 with 12 heads. The defaults here are smaller, for a CPU.
- The query is an anchor beside the `anchors` first results.
- Where a query has fewer results, the affinity to the missing anchors is 0, and no other result attends to a
  missing one.
- At the beginning every layer adds nothing, so training starts from the (randomly projected) affinities.
- Only the first m results are ranked anew; the others follow in their old order.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from gqe.aggregators.attention import EncoderLayer
from gqe.aggregators.base import MOST, MOST_LAYERS, MOST_WIDTH, positive_int
from gqe.errors import InputError
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import wrap_parse_errors
from gqe.neighbors import NeighborGraph
from gqe.registry import Configurable
from gqe.rerank.base import CandidateReranker

_FORMAT = "gqe-csa"
_VERSION = 1
_SHIPPED = Path(__file__).parents[1] / "pretrained" / "csa.safetensors"


class CsaInput(NamedTuple):
    """Queries and their results as affinities.

    Attributes:
        affinities: (b, m + 1, anchors + 1) cosines of the query (first) and its results with the anchors.
        mask: (b, m + 1) bool, False where a result is missing. The query is always there.
    """

    affinities: Tensor
    mask: Tensor


def csa_input(queries: Tensor, results: Tensor, present: Tensor, *, anchors: int, m: int) -> CsaInput:
    """Describe queries and their first m results by their affinities.

    Args:
        queries: (b, d) unit vectors.
        results: (b, R, d) unit vectors of their results, best first.
        present: (b, R) bool, False where one is missing.
        anchors: how many results are anchors, beside the query.
        m: how many results are described.

    Example:
        >>> tokens = torch.eye(3)[None]
        >>> found = csa_input(tokens[:, 0], tokens[:, 1:], torch.ones(1, 2, dtype=torch.bool), anchors=1, m=2)
        >>> found.affinities.tolist()
        [[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]
    """
    tokens = torch.cat([queries[:, None], results], dim=1)
    mask = torch.cat([present.new_ones(len(queries), 1), present], dim=1)
    tokens = tokens.masked_fill(~mask[:, :, None], 0.0)
    affinities = torch.bmm(tokens[:, : m + 1], tokens[:, : anchors + 1].transpose(1, 2))
    missing = max(0, anchors + 1 - affinities.shape[2])
    return CsaInput(nn.functional.pad(affinities, (0, missing)), mask[:, : m + 1])


class CsaEncoder(Configurable, nn.Module):
    """Refines affinities by self-attention.

    Args:
        anchors: how many results are anchors, beside the query.
        width: of the features.
        depth: encoder layers.
        heads: attention heads; they divide the width.

    Example:
        >>> encoder = CsaEncoder(anchors=3, width=8, depth=1, heads=2)
        >>> encoder(CsaInput(torch.ones(2, 6, 4), torch.ones(2, 6, dtype=torch.bool))).shape
        torch.Size([2, 6, 8])
    """

    def __init__(self, *, anchors: int = 128, width: int = 256, depth: int = 2, heads: int = 8) -> None:
        super().__init__()
        self.anchors = positive_int("anchors", anchors, most=MOST_WIDTH)
        self.width = positive_int("width", width, most=MOST_WIDTH)
        self.depth = positive_int("depth", depth, most=MOST_LAYERS)
        self.heads = positive_int("heads", heads)
        if self.width % self.heads:
            raise InputError(f"heads: {heads} heads do not divide the width {width}; change one of them")
        self.enter = nn.Linear(self.anchors + 1, self.width)
        layers = [
            EncoderLayer(self.width, self.heads, 4 * self.width, 0.0, norm_first=True)
            for _ in range(self.depth)
        ]
        for last in [part for layer in layers for part in (layer.out, layer.down)]:
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.layers = nn.ModuleList(layers)
        # Back to affinities: asked for in training only, so that features keep what they were made of.
        self.back = nn.Linear(self.width, self.anchors + 1)

    def forward(self, given: CsaInput) -> Tensor:
        """Refined features (b, m + 1, width) of the query (first) and its results."""
        x: Tensor = self.enter(given.affinities)
        for layer in self.layers:
            x = layer(x, given.mask)
        return x

    @staticmethod
    def scores(features: Tensor) -> Tensor:
        """Cosines (b, m) of the refined query and its refined results."""
        unit = nn.functional.normalize(features.float(), dim=2)
        return torch.bmm(unit[:, 1:], unit[:, 0, :, None])[:, :, 0]

    def save(self, path: str | os.PathLike[str], *, half: bool = False) -> None:
        """Write settings and weights to one .safetensors file, beside the target first and then renamed.

        Args:
            path: of the file.
            half: store the weights in 16 bits.
        """
        from safetensors.torch import save_file

        kind = torch.float16 if half else torch.float32
        state = self.state_dict().items()
        tensors = {name: tensor.detach().cpu().to(kind).contiguous() for name, tensor in state}
        settings = json.dumps(self.settings())
        about = {"format": _FORMAT, "version": str(_VERSION), "settings": settings}
        about["checksum"] = _checksum(settings, tensors)
        with atomic_path(path) as beside:
            save_file(tensors, beside, metadata=about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CsaEncoder:
        """Read a file written by `save`; a broken or foreign one is refused."""
        from safetensors import safe_open

        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; give one written by CsaEncoder.save")
        with wrap_parse_errors(Path(path), "safetensors file"), safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.get("format") != _FORMAT:
            raise InputError(f"{path}: not a csa model of this package")
        if about.get("version") != str(_VERSION):
            raise InputError(
                f"{path}: format version {about.get('version')}, this package reads {_VERSION}; update gqe"
            )
        settings = about.get("settings", "")
        if about.get("checksum") != _checksum(settings, tensors):
            raise InputError(
                f"{path}: the checksum does not match, the file is damaged; save the model again"
            )
        try:
            with torch.device("meta"):  # without memory: every weight comes from the file
                encoder = cls(**json.loads(settings))
            encoder.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
        except (TypeError, ValueError, RuntimeError) as error:  # RecursionError is a RuntimeError
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{path}: settings and weights do not fit ({reason}); save the model again"
            ) from None
        return encoder.eval()


class Csa(CandidateReranker):
    """Contextual similarity aggregation (Ouyang et al., 2021).

    Args:
        model: the file of a trained encoder, written by `CsaEncoder.save`, or "shipped" for the one of the
            package. Use `Csa.of` for an encoder that is in memory.
        m: how many first results are ranked anew.

    Example:
        >>> from gqe import knn
        >>> database = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.6, 0.7]]))
        >>> first = knn(database, 3, queries=database[:1])
        >>> method = Csa.of(CsaEncoder(anchors=3, width=8, heads=2))
        >>> method = method.fit(database, knn(database, 1), device=torch.device("cpu"))
        >>> method.rerank(database[:1], first).ids.tolist()[0][0]
        0
    """

    def __init__(self, *, model: str = "shipped", m: int = 128) -> None:
        if not isinstance(model, str | os.PathLike) or not os.fspath(model):
            raise InputError(f"model: expected the file of a trained encoder or 'shipped', got {model!r}")
        self.model, self.m = os.fspath(model), positive_int("m", m, most=MOST)
        self.encoder = CsaEncoder.load(_SHIPPED if model == "shipped" else model)

    @classmethod
    def of(cls, encoder: CsaEncoder, *, m: int = 128) -> Self:
        """A re-ranker with an encoder that is in memory."""
        made = cls.__new__(cls)
        made.model, made.m, made.encoder = "", positive_int("m", m, most=MOST), encoder
        return made

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are read."""
        return max(self.m, self.encoder.anchors)

    def size(self) -> int:
        """Bytes kept beside the database and its graph: the encoder, whatever the size of the database."""
        return sum(tensor.nbytes for tensor in self.encoder.state_dict().values())

    def fit(self, database: Tensor, graph: NeighborGraph, *, device: torch.device) -> Self:
        """Keep the database; nothing is computed, and the graph is not read."""
        self.encoder.to(device)
        return super().fit(database, graph, device=device)

    def _numbers(self, width: int, dim: int) -> int:
        return width * (dim + 12 * self.encoder.width + self.encoder.anchors)

    def _scores(self, queries: Tensor, vectors: Tensor, present: Tensor) -> Tensor:
        given = csa_input(queries, vectors, present, anchors=self.encoder.anchors, m=self.m)
        return self.encoder.scores(self.encoder(given))


def _checksum(settings: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(settings.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
