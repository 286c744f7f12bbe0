"""What the similarities within a neighbourhood say of each pair of tokens, and of each token.

The original embeddings say the same at every level of a stack, so what they say is a value of its own
(`BaseView`) that can be worked out once and handed from level to level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gqe.aggregators.base import Neighborhood
from gqe.aggregators.context import PLACES, density_rank
from gqe.errors import InputError

LISTED = 16
"""Neighbours with whom each token's similarity is a feature; the whole row is known by its sorted values."""
DEVIATIONS = 6.0
"""A similarity is read as tanh(deviations above the background / 6): beyond 6 nothing is there by chance."""
_STEP = 0.08
"""Distance between two of the STEPS."""
STEPS = tuple(round(-0.1 + _STEP * step, 2) for step in range(15))
"""Points over which a similarity is spread."""
CROWDED = 2 * (2 * len(PLACES) + 2)
"""Number of features that compare a token with the rest of the database."""
RARITY = CROWDED // 2 + len(PLACES) + PLACES.index(4)
"""The one of them that says how rare a list as dense as the node's is at its fourth place."""
_SOFTNESS = 0.25
"""Deviations of the background within which the place of an item in a list is uncertain."""
_NEVER = -1e4
"""Added to the score of a missing token: far below all others, and within the range of 16 bits."""


class View(NamedTuple):
    """What the cosines of one level say.

    Attributes:
        pairs: (channels, batch, K+1, K+1) of each pair of tokens.
        listed: (batch, K+1, 3 * (LISTED + 1)) cosines with the node and the best neighbours, in three scales.
        ordered: (batch, K+1, len(PLACES)) cosines with all other tokens, by falling size.
    """

    pairs: Tensor
    listed: Tensor
    ordered: Tensor


class BaseView(NamedTuple):
    """All that the original embeddings say of a neighbourhood.

    Attributes:
        view: of the original cosines. Its `pairs` have three more channels: what rules out missing tokens
            (first), and the place that either token of a pair takes in the list of the other (last).
        more: (batch, K+1, f) further features of the tokens.
        crowded: (batch, K+1, CROWDED) how crowded it is around a token, around the node, and between them,
            compared with the rest of the database.
        steps: (batch, K+1, 3 * len(STEPS)) the similarities that decide most, each spread over STEPS.
        both: (batch, K+1, K+1) 1 where two tokens meet, 0 where one of them is missing.
        others: the same, but 0 also where a token meets itself.
        ahead: (len(PLACES), batch, K+1, K+1) how surely so many items, one number for each of PLACES, are
            nearer to token j than token i is.
    """

    view: View
    more: Tensor
    crowded: Tensor
    steps: Tensor
    both: Tensor
    others: Tensor
    ahead: Tensor


class Described(Neighborhood):
    """A neighbourhood whose `base`, `profiles` and `quantiles` were read already."""

    base_view: BaseView

    @classmethod
    def of(cls, neighborhood: Neighborhood, base_view: BaseView) -> Described:
        """The neighbourhood together with its view."""
        result = cls(*neighborhood)
        result.base_view = base_view
        return result


def base_view(tokens: Tensor, mask: Tensor, own: Tensor, ground: Tensor, quantiles: Tensor) -> BaseView:
    """Describe neighbourhoods by their original embeddings.

    Args:
        tokens: (batch, K+1, d) original embeddings.
        mask: (batch, K+1) bool, False where a token is missing.
        own: (batch, K+1, len(PLACES)) profiles of the tokens' own neighbour lists.
        ground: (2,) `background` of the original space.
        quantiles: (QUANTILES, len(PLACES)) how near neighbours are all over the database.
    """
    there = mask.float()
    both = there[:, :, None] * there[:, None]
    others = both * (1 - torch.eye(mask.shape[1], device=mask.device))
    cosines = gram(tokens)
    view = view_of(cosines, ground, both, others)

    # How far down i stands in the list of j: 0 is before its first neighbour, 1 beyond its last.
    own = own.masked_fill(~own.isfinite(), -1.0)
    unit = _SOFTNESS * ground[1]
    lists = (own / unit).permute(2, 0, 1).contiguous()
    ahead = torch.sigmoid(lists[:, :, None] - cosines / unit)
    place = ahead.mean(dim=0)
    ruled_out = _NEVER * (1 - there)[:, None].expand_as(place)

    share = view.pairs[0]
    present = there.sum(dim=1)[:, None, None]
    near, best = share[:, :, :1], share[:, :1, 1:2].clamp(min=0.05)
    average = share.sum(dim=2, keepdim=True) / present
    returned = place[:, :1].transpose(1, 2)
    more = [
        *scaled(own, ground),
        ahead[:, :, 0].permute(1, 2, 0),
        (near / best).clamp(-1.0, 1.5),
        average,
        torch.linalg.vector_norm(share, dim=2, keepdim=True) / present.sqrt(),
        returned,
        (torch.log2(present) / 6).expand_as(average),
    ]
    return BaseView(
        view._replace(pairs=torch.stack([ruled_out, *view.pairs, place, place.transpose(1, 2)])),
        more=torch.cat(more, dim=2),
        crowded=_crowded(own, cosines[:, :, :1], quantiles),
        steps=stepped(torch.cat([near, average, returned], dim=2)),
        both=both,
        others=others,
        ahead=ahead,
    )


def known_base_view(neighborhood: Neighborhood) -> tuple[BaseView, Tensor]:
    """What the original embeddings say, known already or computed here, and the backgrounds (2, 2)."""
    base, own = neighborhood.base, neighborhood.profiles
    grounds, quantiles = neighborhood.background, neighborhood.quantiles
    if isinstance(neighborhood, Described) and grounds is not None:
        return neighborhood.base_view, grounds
    if base is None or own is None or grounds is None or quantiles is None:
        raise InputError("neighborhood: needs its base tokens, profiles, background and quantiles")
    return base_view(base, neighborhood.mask, own, grounds[0], quantiles), grounds


def _crowded(own: Tensor, near: Tensor, quantiles: Tensor) -> Tensor:
    """(batch, K+1, CROWDED), from lists of tokens (batch, K+1, places) and cosines with the node (..., 1)."""
    lists = density_rank(own.permute(2, 0, 1), quantiles).permute(1, 2, 0)
    between = density_rank(near.permute(2, 0, 1).expand(2, -1, -1), quantiles[:, [0, 3]]).permute(1, 2, 0)
    shares = torch.cat([lists, lists[:, :1].expand_as(lists), between], dim=2)
    # The densest hundredth of a database is another thing than the densest tenth.
    rarity = -torch.log2(1 - shares + 1 / 64) / 6
    return torch.cat([shares, rarity], dim=2)


def view_of(cosines: Tensor, ground: Tensor, both: Tensor, others: Tensor) -> View:
    """Describe cosines (batch, K+1, K+1) in three scales, all 0 where a token is missing.

    The last scale is the contrast inside the neighbourhood: beside strangers all neighbours may look alike.
    For `both` and `others` see `BaseView`.
    """
    batch, count, _ = cosines.shape
    share, deviations = scaled(cosines, ground)
    number = others.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    away = share - (share * others).sum(dim=(1, 2), keepdim=True) / number
    variance = (away**2 * others).sum(dim=(1, 2), keepdim=True) / number
    # A little more than nothing, since the slope of a root at 0 is infinite.
    contrast = (away / (2 * (variance + 1e-6).sqrt() + 0.02)).clamp(-2.0, 2.0)
    pairs = torch.stack([share, deviations, contrast]) * both
    listed = pad(pairs[:, :, :, : LISTED + 1], (0, max(0, LISTED + 1 - count)))
    listed = listed.permute(1, 2, 0, 3).reshape(batch, count, -1)
    return View(pairs, listed, _ordered(share, others))


def gram(tokens: Tensor) -> Tensor:
    """Cosines (batch, K+1, K+1) of tokens (batch, K+1, d)."""
    return torch.bmm(tokens, tokens.transpose(1, 2))


def scaled(cosines: Tensor, ground: Tensor) -> list[Tensor]:
    """Cosines above the background: as a share of what is possible, and in deviations."""
    mean, spread = ground
    above = cosines - mean
    share = (above / (1 - mean).clamp(min=1e-3)).clamp(min=-0.5)
    return [share, torch.tanh(above / (DEVIATIONS * spread))]


def stepped(values: Tensor) -> Tensor:
    """Spread values (batch, K+1, v) over STEPS: 1 at the step a value stands on, falling to 0 beside it.

    So that a threshold is one weight. The result is (batch, K+1, v * len(STEPS)).
    """
    steps = torch.tensor(STEPS, device=values.device, dtype=values.dtype)
    return torch.relu(1 - (values[..., None] - steps).abs() / _STEP).flatten(2)


def _ordered(rows: Tensor, others: Tensor) -> Tensor:
    """What each token is to the others, by falling size, at PLACES; 0 where there are fewer."""
    rows = rows.masked_fill(others == 0, float("-inf"))
    count = rows.shape[2]
    ends = [count - place for place in PLACES if place <= count]
    if rows.requires_grad or rows.device.type != "cpu":
        picked = rows.sort(dim=2).values[:, :, ends]
    else:  # NumPy sorts short rows on a CPU ten times faster than torch
        picked = torch.from_numpy(np.sort(rows.numpy(), axis=2)[:, :, ends])
    picked = picked.masked_fill(picked == float("-inf"), 0.0)
    return pad(picked, (0, len(PLACES) - len(ends)))
