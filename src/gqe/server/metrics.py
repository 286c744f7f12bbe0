"""What Prometheus is told."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one app; every app has its own, so that several can live in a process."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "gqe_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "gqe_request_seconds",
            "Seconds a request took.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.under_way = Gauge("gqe_requests_under_way", "Requests not answered yet.", registry=self.registry)
        self.batches = Histogram(
            "gqe_batch_queries",
            "Queries answered by one call.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 1024),
            registry=self.registry,
        )
        self.written = Counter("gqe_items_written", "Items by change.", ["change"], registry=self.registry)
        self.items = Gauge("gqe_items", "Items in the index.", registry=self.registry)
        self.version = Gauge("gqe_index_version", "Version of the index.", registry=self.registry)
        self.waiting = Gauge("gqe_waiting", "Jobs that wait, by kind.", ["kind"], registry=self.registry)

    def page(self) -> bytes:
        """All of them as text."""
        return generate_latest(self.registry)
