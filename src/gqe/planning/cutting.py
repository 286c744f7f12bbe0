"""Into how many shards a build on a cluster cuts rows: the build asks here, and so does the planner."""

from __future__ import annotations

# Shards for each worker, so that all are busy to the end. Approximate searches cost less in large shards.
_SHARDS_A_WORKER, _APPROXIMATE_SHARDS_A_WORKER = 4, 1
# No shard is larger than this in float32, nor smaller, where it can be helped.
_MOST_BYTES = 1 << 30
_FEWEST_ROWS = 1024


def usual_shards(items: int, dim: int, workers: int, *, exact: bool) -> int:
    """Several for each worker, and none above 1 GiB.

    Example:
        >>> usual_shards(1_000_000, 2048, 2, exact=True)
        8
    """
    each = _SHARDS_A_WORKER if exact else _APPROXIMATE_SHARDS_A_WORKER
    by_size = -(-items * dim * 4 // _MOST_BYTES)
    return max(1, by_size, min(each * workers, items // _FEWEST_ROWS))
