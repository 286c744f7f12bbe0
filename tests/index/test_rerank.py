"""Re-ranked searches of an index."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe.errors import InputError
from gqe.index import Index
from gqe.methods import parse_method
from gqe.models import from_method


@pytest.mark.parametrize(
    "rerank", ["reciprocal:k1=6", "egt:k=8:t=0.2", "diffusion:k=8:kq=3", "superglobal:k=3"]
)
@pytest.mark.parametrize("dba", [False, True])
def test_equals_the_expander_on_the_same_items(tmp_path, random_unit, rerank, dba):
    database, queries = random_unit(60, 8), random_unit(5, 8, seed=1)
    method = parse_method(f"aqe:k=4+{rerank}")
    index = Index.build(database, gqe.expander("aqe", k=4), tmp_path / "index", dba=dba)
    wanted = from_method(method).fit(database).search(queries, 7, dba=dba)
    found = index.search(queries, 7, rerank=rerank)
    assert np.array_equal(found.ids, wanted.ids)
    assert np.allclose(found.scores, wanted.scores, atol=1e-5)
    assert np.allclose(index.search(queries[0], 7, rerank=rerank).scores, found.scores[0], atol=1e-5)


def test_removed_excluded_and_filtered_items_stay_out(tmp_path, random_unit):
    database = random_unit(60, 8)
    index = Index.build(
        database, gqe.expander("aqe", k=4), tmp_path / "index", metadata={"odd": np.arange(60) % 2}
    )
    index.remove([3, 4, 5])
    left = np.delete(np.arange(60), [3, 4, 5])
    anew = Index.build(database[left], gqe.expander("aqe", k=4), tmp_path / "anew", ids=left)
    rerank = "egt:k=8:t=-1"  # walks everywhere
    found = index.search(database[:9], 10, rerank=rerank)
    assert np.array_equal(found.ids, anew.search(database[:9], 10, rerank=rerank).ids)
    own = index.search(database[left], 10, exclude=left.tolist(), rerank=rerank)
    assert not (own.ids == left[:, None]).any()
    odd = index.search(database[:9], 10, filter={"odd": 1}, rerank=rerank)
    assert (odd.ids % 2 == 1).all()


def test_what_is_no_re_ranker_or_reads_too_much_is_refused(tmp_path, random_unit):
    database = random_unit(40, 8)
    index = Index.build(database, gqe.expander("aqe", k=4), tmp_path / "index")
    with pytest.raises(InputError, match="rerank: expected a re-ranker such as 'reciprocal', got 'aqe'"):
        index.search(database, 3, rerank="aqe")
    with pytest.raises(InputError, match="egt:k=30 reads 30 neighbours an item, the index keeps 12"):
        index.search(database, 3, rerank="egt:k=30")
