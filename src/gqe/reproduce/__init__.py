"""The paper's tables and figures, measured anew on data at hand."""

from gqe.reproduce.artefacts import ARTEFACTS
from gqe.reproduce.measuring import Manner
from gqe.reproduce.running import Report, reproduce
from gqe.reproduce.suite import Place, Suite
from gqe.reproduce.suites import SUITES, Sources, make_suite

__all__ = ["ARTEFACTS", "SUITES", "Manner", "Place", "Report", "Sources", "Suite", "make_suite", "reproduce"]
