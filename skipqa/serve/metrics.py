"""Counters and histograms for Prometheus, named as vLLM names its own.

Enters: answers, responses and the engine's own numbers when they are asked for. Leaves: the text of
`/metrics`. Every server has its own registry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
STAGE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._latency = self._histogram("e2e_request_latency_seconds", "A question.", SECONDS)
        self._stage = self._histogram("stage_seconds", "A stage.", STAGE_SECONDS, "stage")
        self._route = self._counter("route", "Answers, by route.", "route")
        self._flops = self._counter("estimated_flops", "FLOPs of all answers.")
        self._prompt = self._counter("prompt_tokens", "Tokens read.")
        self._generated = self._counter("generation_tokens", "Tokens of answers.")
        self._responses = self._counter("http_responses", "Responses.", "method", "status")

    def _counter(self, name: str, told: str, *labels: str) -> Counter:
        return Counter(f"skipqa:{name}", told, labels, registry=self.registry)

    def _histogram(
        self, name: str, told: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"skipqa:{name}", told, labels, buckets=buckets, registry=self.registry)

    def watch(self, gauges: dict[str, Callable[[], float]]) -> None:
        """Numbers that are read when they are asked for."""
        self.registry.register(_Gauges(gauges))

    def answered(self, outline: dict[str, Any], seconds: float, usage: dict[str, int]) -> None:
        self._latency.observe(seconds)
        for stage in outline["stages"]:
            self._stage.labels(stage["name"]).observe(stage["ms"] / 1e3)
        self._route.labels(outline["route"]).inc()
        self._flops.inc(outline["flops"])
        self._prompt.inc(usage["prompt_tokens"])
        self._generated.inc(usage["completion_tokens"])

    def responded(self, method: str, status: int) -> None:
        known = method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS") else "other"
        self._responses.labels(known, str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, gauges: dict[str, Callable[[], float]]) -> None:
        self.gauges = gauges

    def collect(self) -> list[Metric]:
        return [
            GaugeMetricFamily(f"skipqa:{name}", name.replace("_", " "), value=read())
            for name, read in self.gauges.items()
        ]
