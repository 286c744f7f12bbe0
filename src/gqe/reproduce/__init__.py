"""The paper's tables and figures, measured anew on data at hand."""

from gqe.reproduce.measuring import StreamingOptions
from gqe.reproduce.running import ARTEFACTS, Report, reproduce
from gqe.reproduce.suite import BenchmarkEntry, Sources, Suite
from gqe.reproduce.suites import SUITES, make_suite

__all__ = [
    "ARTEFACTS",
    "SUITES",
    "BenchmarkEntry",
    "Report",
    "Sources",
    "StreamingOptions",
    "Suite",
    "make_suite",
    "reproduce",
]
