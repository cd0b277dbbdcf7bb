"""`/metrics`: the server's figures in Prometheus' format, by our names and those of TEI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flowvec.errors import FlowvecError
from flowvec.optional import require
from flowvec.server.answer import Answer
from flowvec.server.described import described
from flowvec.server.measures import Histogram
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ServedModel

__all__ = ["metrics"]

# Seconds in which collections must say how many rows they have; one that does not is left out.
_PATIENCE = 1.0

# Of TEI's errors, the one that a status stands for.
_TEI_ERRORS = {429: "overloaded", 413: "batch_size", 424: "model_type", 499: "dropped"}
# Routes that are TEI's, or that it has too: those that embed, and those that sort.
_TEI_RERANK = "POST /rerank"
_TEI_PREDICT = "POST /predict"
_TEI_EMBED = tuple(
    f"POST {path}"
    for path in (
        "/", "/embed", "/embed_all", "/embed_sparse", "/invocations", "/embeddings",
        "/v1/embeddings", "/similarity",
    )
)  # fmt: skip
_TEI_ROUTES = (*_TEI_EMBED, _TEI_RERANK, _TEI_PREDICT)


@described(str, kind="text/plain")
async def metrics(served: Served, request: Request) -> Answer:
    """All figures.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
    """
    require("/metrics", "serve", "prometheus_client")
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST

    figures = await _figures(served)
    families = [*_requests(served), *_models(served), *_collections(figures)]
    if served.settings.metrics_names == "tei":
        families += _teis(served)

    class Families:
        """What prometheus_client asks for families."""

        def collect(self) -> Iterable[Any]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    ProcessCollector(registry=registry)
    return Answer(generate_latest(registry), kind=CONTENT_TYPE_LATEST.encode())


async def _figures(served: Served) -> dict[str, tuple[int, ...]]:
    """Of each collection that can be read at once: rows, those with a sparse vector, bytes of its
    inverted file, rows with token vectors, and bytes of these."""
    figures: dict[str, tuple[int, ...]] = {}
    for name, collection in served.collections.items():
        try:
            rows = await collection.rows.count(timeout=_PATIENCE)
            sparse = await collection.rows._sparse_figures(timeout=_PATIENCE)
            tokens = await collection.rows._token_figures(timeout=_PATIENCE)
        except FlowvecError:
            continue
        figures[name] = (rows, *sparse, *tokens)
    return figures


# --- our names ----------------------------------------------------------------------------------


def _requests(served: Served) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    measures = served.measures
    count = CounterMetricFamily(
        "flowvec_requests", "Requests that were answered; 499: the client left.",
        labels=["route", "status"],
    )  # fmt: skip
    for (route, status), number in measures.requests.items():
        count.add_metric([route, str(status)], number)
    yield count
    yield _histograms(
        "flowvec_request_seconds", "From the headers to the end of the answer.", "route",
        measures.seconds.items(),
    )  # fmt: skip
    yield GaugeMetricFamily(
        "flowvec_running_requests", "Requests for work that are not answered.", served.running
    )
    yield GaugeMetricFamily(
        "flowvec_unsent_bytes", "Vectors of answers that are being sent.", served.unsent_bytes
    )


def _models(served: Served) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    models = served.queues
    counters: list[tuple[str, str, Callable[[ServedModel], float]]] = [
        ("texts", "Texts or pairs that were answered.", lambda m: m.measures.items),
        ("tokens", "Their tokens.", lambda m: m.measures.tokens),
        ("truncated_texts", "Texts or pairs that were cut.", lambda m: m.measures.truncated),
        (
            "replaced_texts",
            "Texts or pairs in which lone surrogates became U+FFFD.",
            lambda m: m.measures.replaced,
        ),
        ("padding_tokens", "Computed tokens that were padding.", lambda m: m.measures.padding),
    ]
    for name, about, value in counters:
        counter = CounterMetricFamily(f"flowvec_{name}", about, labels=["model"])
        for model in models:
            counter.add_metric([model.name], value(model))
        yield counter
    gauges: list[tuple[str, str, Callable[[ServedModel], float]]] = [
        ("waiting_texts", "Texts whose turn has not come.", lambda m: m.queue.waiting_items),
        ("waiting_tokens", "Estimated tokens of unfinished calls.",
         lambda m: m.queue.waiting_tokens),
        ("waiting_seconds", "How long these take at the measured rate.",
         lambda m: m.rate.seconds(m.queue.waiting_tokens) or 0.0),
        ("stalled_seconds", "How long there was no result though texts wait.",
         lambda m: m.queue.stalled_seconds()),
    ]  # fmt: skip
    for name, about, value in gauges:
        gauge = GaugeMetricFamily(f"flowvec_{name}", about, labels=["model"])
        for model in models:
            gauge.add_metric([model.name], value(model))
        yield gauge
    histograms: list[tuple[str, str, Callable[[ServedModel], Histogram]]] = [
        ("tokenize_seconds", "Time of a call in the tokenizer.", lambda m: m.measures.tokenize),
        ("queue_seconds", "Time of a call in the queue.", lambda m: m.measures.queue),
        ("compute_seconds", "From a call's first batch to its last.", lambda m: m.measures.compute),
        ("batch_texts", "Texts of a batch.", lambda m: m.measures.batch_items),
        ("batch_tokens", "Tokens of a batch, padding included.", lambda m: m.measures.batch_tokens),
    ]
    for name, about, histogram in histograms:
        pairs = [(model.name, histogram(model)) for model in models]
        yield _histograms(f"flowvec_{name}", about, "model", pairs)


def _collections(figures: dict[str, tuple[int, ...]]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    names = (
        ("rows", "Rows."),
        ("sparse_rows", "Rows with a sparse vector."),
        ("sparse_bytes", "Memory of the sparse vectors' inverted file; 0 before the first search."),
        ("token_rows", "Rows with token vectors."),
        ("token_bytes", "Size of the token vectors on disk."),
    )
    for place, (name, about) in enumerate(names):
        gauge = GaugeMetricFamily(f"flowvec_collection_{name}", about, labels=["collection"])
        for collection, numbers in figures.items():
            gauge.add_metric([collection], numbers[place])
        yield gauge


def _histograms(name: str, about: str, label: str, pairs: Iterable[tuple[str, Histogram]]) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, about, labels=[label])
    for value, histogram in pairs:
        family.add_metric([value], list(histogram.buckets()), histogram.sum)
    return family


# --- TEI's names --------------------------------------------------------------------------------


def _teis(served: Served) -> Iterator[Any]:
    """TEI's names, without the endings that Prometheus' own clients give."""
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, UnknownMetricFamily

    requests = [(r, s, n) for (r, s), n in served.measures.requests.items() if r in _TEI_ROUTES]
    counters = [
        ("te_request_count", sum(n for _, _, n in requests)),
        ("te_request_success", sum(n for _, s, n in requests if s < 300)),
        ("te_embed_count", sum(n for r, _, n in requests if r in _TEI_EMBED)),
        ("te_embed_success", sum(n for r, s, n in requests if r in _TEI_EMBED and s < 300)),
        ("te_rerank_count", sum(n for r, _, n in requests if r == _TEI_RERANK)),
        ("te_rerank_success", sum(n for r, s, n in requests if r == _TEI_RERANK and s < 300)),
        ("te_predict_count", sum(n for r, _, n in requests if r == _TEI_PREDICT)),
        ("te_predict_success", sum(n for r, s, n in requests if r == _TEI_PREDICT and s < 300)),
    ]
    for name, number in counters:
        yield UnknownMetricFamily(name, "As TEI counts it.", number)
    failures: dict[str, int] = {}
    for _, status, number in requests:
        if status >= 300:
            kind = _TEI_ERRORS.get(status, "validation" if status < 500 else "inference")
            failures[kind] = failures.get(kind, 0) + number
    failure = UnknownMetricFamily("te_request_failure", "As TEI counts it.", labels=["err"])
    for kind, number in failures.items():
        failure.add_metric([kind], number)
    yield failure

    models = served.models
    durations = served.measures.seconds
    summed = [
        ("te_request_duration", [durations[r] for r in _TEI_ROUTES if r in durations]),
        ("te_embed_duration", [durations[r] for r in _TEI_EMBED if r in durations]),
        ("te_rerank_duration", [durations[r] for r in (_TEI_RERANK,) if r in durations]),
        ("te_predict_duration", [durations[r] for r in (_TEI_PREDICT,) if r in durations]),
        ("te_request_tokenization_duration", [m.measures.tokenize for m in models]),
        ("te_request_queue_duration", [m.measures.queue for m in models]),
        ("te_request_inference_duration", [m.measures.compute for m in models]),
        ("te_batch_next_size", [m.measures.batch_items for m in models]),
        ("te_batch_next_tokens", [m.measures.batch_tokens for m in models]),
    ]
    for name, histograms in summed:
        if histograms:
            lines = zip(*(h.buckets() for h in histograms), strict=True)
            buckets = [(line[0][0], sum(number for _, number in line)) for line in lines]
            total = sum(h.sum for h in histograms)
            yield HistogramMetricFamily(name, "As TEI counts it.", buckets, total)
    size = sum(model.queue.waiting_items for model in models)
    yield GaugeMetricFamily("te_queue_size", "Texts whose turn has not come.", size)
