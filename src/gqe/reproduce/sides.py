"""The database side of a model, chosen on validation data; each setting that is tried is a stored cell."""

from __future__ import annotations

from gqe.evaluation.tuning import DATABASE_KS, TEMPERATURES, Side, best_side
from gqe.methods import Method
from gqe.reproduce.measuring import Measurer
from gqe.reproduce.suite import Place


def tuned_side(measurer: Measurer, place: Place, method: Method) -> Side:
    """The best side found by `best_side`.

    Args:
        measurer: measures and keeps every setting that is tried.
        place: the validation data.
        method: the model, with `dba`.
    """
    settings = measurer.suite.settings
    return best_side(
        method.stack(),
        lambda side: measurer.measure(place, method, side=side).main,
        ks=settings.get("database_ks", DATABASE_KS),
        temperatures=settings.get("temperatures", TEMPERATURES),
    )
