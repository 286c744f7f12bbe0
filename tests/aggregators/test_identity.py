"""No expansion."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe import Expander
from gqe.aggregators import Identity, Mean


def test_the_node_stays(random_unit):
    database, queries = random_unit(20, 6), random_unit(4, 6, seed=1)
    expander = Expander([Identity()]).fit(database)
    np.testing.assert_allclose(expander.expand(queries), queries, atol=1e-6)
    np.testing.assert_allclose(expander.augment(), database, atol=1e-6)
    assert expander.weights(queries).nnz == 0


def test_a_skipped_level_changes_nothing(random_unit):
    database, queries = random_unit(20, 6), random_unit(4, 6, seed=1)
    plain = gqe.expander("aqe", k=3).fit(database).expand(queries)
    for stack in ([Identity(), Mean(3)], [Mean(3), Identity()], [Identity(), Identity(), Mean(3)]):
        np.testing.assert_allclose(Expander(stack).fit(database).expand(queries), plain, atol=1e-6)


def test_it_asks_for_one_neighbour_by_default():
    assert repr(Identity()) == "Identity(k=1)"
    with pytest.raises(gqe.InputError, match="k: "):
        Identity(0)
