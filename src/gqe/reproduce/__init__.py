"""The paper's tables and figures, measured anew on data at hand."""

from gqe.reproduce.artefacts import ARTEFACTS
from gqe.reproduce.measuring import StreamingOptions
from gqe.reproduce.running import Report, reproduce
from gqe.reproduce.suite import Place, Suite
from gqe.reproduce.suites import SUITES, Sources, make_suite

__all__ = [
    "ARTEFACTS",
    "SUITES",
    "Place",
    "Report",
    "Sources",
    "StreamingOptions",
    "Suite",
    "make_suite",
    "reproduce",
]
