"""The names of the re-rankers, and one of them with its settings."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from gqe.rerank.base import Reranker
from gqe.rerank.csa import Csa
from gqe.rerank.diffusion import Diffusion
from gqe.rerank.egt import Egt
from gqe.rerank.gss import Gss
from gqe.rerank.hybrid_diffusion import HybridDiffusion
from gqe.rerank.offline_diffusion import OfflineDiffusion
from gqe.rerank.reciprocal import Reciprocal
from gqe.rerank.spectral import Spectral
from gqe.rerank.superglobal import SuperGlobal

RERANKERS: dict[str, type[Reranker]] = {
    kind.name: kind
    for kind in (
        Diffusion,
        OfflineDiffusion,
        Spectral,
        HybridDiffusion,
        Egt,
        Gss,
        Reciprocal,
        SuperGlobal,
        Csa,
    )
}


class Reranking(NamedTuple):
    """A re-ranker by its name, with its complete settings."""

    name: str
    settings: dict[str, Any]

    def make(self) -> Reranker:
        """A new re-ranker, not yet bound to a database; refuses settings that make no sense."""
        return RERANKERS[self.name](**self.settings)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        usual = settings_of(self.name)
        return {key: value for key, value in self.settings.items() if value != usual[key]}

    def __str__(self) -> str:
        return self.name + "".join(f":{key}={value}" for key, value in self.changed.items())


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a re-ranker with their default values."""
    parameters = inspect.signature(RERANKERS[name]).parameters
    return {key: parameter.default for key, parameter in parameters.items()}
