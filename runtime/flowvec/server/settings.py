"""What a server allows: limits, deadlines, and what each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from flowvec.arguments import choice, flag, number, whole_number
from flowvec.errors import InputValueError
from flowvec.server.keys import Keys

__all__ = ["MetricsNames", "Settings"]

MetricsNames = Literal["flowvec", "tei"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of `create_app`.

    Attributes:
        max_waiting_tokens: most tokens of accepted requests that are not computed yet, for each
            model; more are refused with 429. A text counts as at least 16.
        max_body_bytes: most bytes of a request's body.
        max_text_characters: most characters of a text. Longer ones are refused; texts above the
            model's length are cut, so there is no use for them.
        max_sparse_terms: most indices of a sparse vector in a body. Vectors with more are refused.
        timeout: seconds after which a request is answered with 504; a client may ask for less.
        body_timeout: seconds in which a request's body must arrive; a large one has longer.
        max_unsent_bytes: most bytes of computed vectors that clients have not read yet; new work is
            refused with 429 above it. The vectors of tokens that wait for a multi-vector encoder
            must fit into it too.
        stall_timeout: seconds without any result, while requests wait, after which `/health` and
            `/ready` fail.
        any_model: answer requests for models of other names with the only model that is served.
        accept_token_ids: take token ids in place of texts. Only for callers that have the model's
            own tokenizer: ids of another vocabulary give wrong vectors without an error.
        keys: API keys, for every route but the probes; None asks for none.
        hosts: names in a request's Host header that are answered; None answers all.
        origins: origins of web pages that may call, such as `https://example.org`.
        open_metrics: answer `/metrics` without a key.
        metrics_names: `tei` adds the names of Text Embeddings Inference.
        truncate: cut texts above the model's length, unless the request says otherwise; False
            refuses them.
        page: answer browsers at `/` with a page, and the routes that only the page uses.
        page_may_write: let the page add and delete rows. The routes that change rows answer other
            callers either way.
        tracer_provider: OpenTelemetry's, for spans of requests; None makes none.
    """

    max_waiting_tokens: int = 2_000_000
    max_body_bytes: int = 32 << 20
    max_text_characters: int = 2_000_000
    max_sparse_terms: int = 1 << 16
    timeout: float = 300.0
    body_timeout: float = 30.0
    max_unsent_bytes: int = 1 << 30
    stall_timeout: float = 60.0
    any_model: bool = False
    accept_token_ids: bool = False
    truncate: bool = True
    open_metrics: bool = False
    metrics_names: MetricsNames = "flowvec"
    keys: Keys | None = None
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    page: bool = True
    page_may_write: bool = False
    tracer_provider: Any = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InputTypeError, InputValueError: one is not valid.
        """
        flag("page", self.page)
        if flag("page_may_write", self.page_may_write) and not self.page:
            raise InputValueError("page_may_write is for the page, which page=False leaves out")
        choice("metrics_names", self.metrics_names, get_args(MetricsNames))
        for name in (
            "max_waiting_tokens", "max_body_bytes", "max_text_characters", "max_sparse_terms",
            "max_unsent_bytes",
        ):  # fmt: skip
            whole_number(name, getattr(self, name), most=None)
        for name in ("timeout", "body_timeout", "stall_timeout"):
            if number(name, getattr(self, name)) <= 0:
                raise InputValueError(f"{name} must be above 0 seconds")
