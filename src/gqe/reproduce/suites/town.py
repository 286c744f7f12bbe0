"""The built-in town: everything in a few minutes, nothing to download."""

from __future__ import annotations

from gqe.datasets import town
from gqe.reproduce.suite import GRIDS, Place, Suite
from gqe.reproduce.suites.base import Models, Sources
from gqe.training.presets import Options

TRAINING = Options(preset="small", k=16, steps=400)


def make(sources: Sources) -> Suite:
    """The suite; models are trained on its training landmarks unless they are given."""
    validation = Place("town-val", "town, validation", "town", lambda: town.load("val"))
    models = Models(
        [] if sources.models is None else [sources.models / "town", sources.models],
        sources.output / "models" / "town",
        town.load_train,
        validation.load,
        TRAINING,
        sources,
    )
    return Suite(
        name="town",
        title="GQE on the built-in town",
        about="Landmarks of a drawn town. LAttQE and GQE are small encoders of similarities with one and two"
        " levels, trained here on its training landmarks; the universal model ships with the package."
        " Settings are chosen on its validation landmarks, which are neither trained nor tested on.",
        tests=[Place("town", "town", "town", lambda: town.load("test"))],
        validation={"town": validation},
        models={"town": models},
        main_space="town",
        # An SVM for every picture of the database takes long, and so does trying every walk and temperature.
        grids=GRIDS
        | {
            "DQE": "dqe:k=300/1000:positives=3/6/12",
            "EGT": "egt:k=10/25:t=0.42/0.6/0.8",
            "DBA + DQE": "dba-dqe:k=300:positives=3/6",
        },
        settings={"database_ks": (4, 8, 16, 32), "temperatures": (None, 0.1, 0.3, 1.0)},
        pictures=True,
    )
