"""The base class of all sources: what an export needs to know about a checkpoint or graph."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from flowvec.errors import ExportError
from flowvec.optional import require

if TYPE_CHECKING:
    from torch import Tensor

    from flowvec_export.assembly.draft import Draft, Weights
    from flowvec_export.assembly.token_parity import OwnTokens
    from flowvec_export.transforms import Transform

__all__ = [
    "AS_EXPORTED",
    "MOST_TOKENS",
    "Source",
    "add_weights",
    "bounded_length",
    "checked_length",
    "model_name",
    "read_licence",
    "require_torch",
]

_TORCH = ("torch", "transformers", "onnxscript", "safetensors")


# The pooling of a graph that gives finished sentence vectors.
AS_EXPORTED = "as exported"


@dataclass(slots=True, kw_only=True)
class Source(ABC):
    """Everything that an export needs to know about a checkpoint or graph.

        >>> source = read_source("my-checkpoint")
        >>> source.name, source.pad_id
        ('my-checkpoint', 0)

    Attributes:
        name: last part of the path or hub name.
        origin: the path or name that the user gave; of the hub, with `@` and its commit.
        tokenizer: a `tokenizers` tokenizer without truncation and padding.
        pad_id: the padding token's id.
        max_length: most tokens of a text; None if neither encoder nor tokenizer limits it.
        vocabulary: number of token ids that the encoder knows.
        layers: its transformer layers, if known.
        pooling: the pooling that it was trained with; None for a plain encoder.
        transforms: Dense layers between pooling and normalization.
        normalize: whether its vectors are normalized; None for a plain encoder.
        prompts: prefixes by name.
        default_prompt_name: the prompt that is used by default.
        similarity: how its vectors are compared.
        licence: from the model card, if it says.
        prompts_are_pooled: whether a prompt's tokens count in the pooling, as in flowvec.
        tuned: whether it comes from a sentence-transformers model, which was trained for
            similarity, even if only its encoder is used.
        unused: names of parts above the encoder that are left out.
        unread: names of folders and files that are not read, because modules.json is missing.
        own_tokens: how the source's own library reads a text; None if it is not installed.
    """

    name: str
    origin: str
    tokenizer: tokenizers.Tokenizer
    pad_id: int
    max_length: int | None
    vocabulary: int
    layers: int | None = None
    pooling: str | None = None
    transforms: list[Transform] = field(default_factory=list)
    normalize: bool | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    licence: str | None = None
    prompts_are_pooled: bool = True
    tuned: bool = False
    unused: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    own_tokens: OwnTokens | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it gives finished vectors only, after all of its own layers."""
        return False

    @abstractmethod
    def draft(
        self,
        length: int,
        pooling: str | None,
        added: Sequence[Transform],
        normalize: bool | None,
        weights: Weights,
    ) -> Draft:
        """Make the graph from token ids to vectors, with a reference to compare it with.

        Args:
            length: most tokens of a text.
            pooling: as for `export`; None is the source's own.
            added: transforms after the source's own.
            normalize: as for `export`; None is the source's own.
            weights: storage of the weight matrices.

        Raises:
            ExportError: the parts do not fit, or the graph cannot be made.
        """

    @abstractmethod
    def pooled_width(self, pooling: str | None) -> int:
        """Length of a pooled vector, before the source's own Dense layers.

        Raises:
            ExportError: there is no such pooling for this source.
        """

    @abstractmethod
    def sha256(self) -> str:
        """SHA-256 (hex) of all that a pooled vector depends on.

        The same checkpoint under another name has the same.
        """

    def width(self, pooling: str | None) -> int:
        """Length of a pooled vector, after the source's own Dense layers.

        Raises:
            ExportError: there is no such pooling for this source.
        """
        return self.transforms[-1].out_dim if self.transforms else self.pooled_width(pooling)

    def pooling_name(self, pooling: str | None) -> str:
        """Name of the pooling for manifests and recipes."""
        return pooling or self.pooling or "mean"

    def max_characters(self, length: int) -> int | None:
        """Characters at which a text is cut before it is tokenized; None if it is not.

        Args:
            length: most tokens of a text.
        """
        return None

    def weigh_words(self, weights: Tensor) -> None:
        """Set the weight of each token id in the mean; float32 (vocabulary,).

        Raises:
            ExportError: this kind of source does not support it.
        """
        raise ExportError(
            f"{self.origin} has word weights, which need the checkpoint's own weights"
        )

    def keep_encoder_only(self) -> None:
        """Drop the source's own pooling, Dense layers and normalization."""
        self.pooling, self.transforms, self.normalize = None, [], None

    def checked_length(self, requested: int | None) -> int:
        """Most tokens of a text: the given number, or the source's own.

        Raises:
            ExportError: it is too small for the special tokens, larger than the encoder's
                positions, or unknown.
        """
        special = self.tokenizer.num_special_tokens_to_add(False)
        return checked_length(self.origin, self.max_length, requested, special + 1)


def checked_length(origin: str, own: int | None, requested: int | None, least: int) -> int:
    """Most tokens of a text or pair: the given number, or the source's own.

    Args:
        origin: name of the source, for messages.
        own: the source's own; None if it does not say.
        requested: the given number; None takes the source's own.
        least: the smallest that has room for a token.

    Raises:
        ExportError: it is too small, larger than the source's own, or unknown.
    """
    length = own if requested is None else requested
    if length is None:
        raise ExportError(f"{origin} does not say how long a text may be: give max_length")
    most = own or MOST_TOKENS
    if not least <= length <= most:
        raise ExportError(
            f"max_length must be from {least} to {most} for {origin}, but is {length}"
        )
    return length


# Used if nothing else limits the length. It is below a manifest's own limit.
MOST_TOKENS = 1 << 16


def bounded_length(origin: str, limit: Any, positions: int | None) -> int | None:
    """The tokenizer's limit, but at most the encoder's positions; None if there is no limit.

    Raises:
        ExportError: the tokenizer's limit is not a whole number.
    """
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if isinstance(limit, bool) or not isinstance(limit, int | None):
        raise ExportError(f"{origin} has the max_seq_length {limit!r}, which is not a whole number")
    # Tokenizers without a limit report 10^30.
    bounds = [b for b in (limit, positions) if b is not None and b <= MOST_TOKENS]
    return min(bounds, default=None)


def add_weights(digest: Any, modules: Iterable[Any], *, leave_out: str | None = None) -> None:
    """Add the weights of torch modules, in float32, to a digest of `hashlib`.

    Args:
        digest: what is updated.
        modules: the modules, in order.
        leave_out: beginning of the names of weights that do not count.
    """
    for place, module in enumerate(modules):
        for name, tensor in sorted(module.state_dict().items()):
            if leave_out is None or not name.startswith(leave_out):
                digest.update(f"{place} {name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().float().contiguous().numpy().tobytes())


def require_torch(what: str) -> None:
    """Raise MissingDependencyError if torch is not installed."""
    require(what, "cpu,export", *_TORCH)


def model_name(root: Path, origin: str) -> str:
    """A directory's name; of a download, in .../snapshots/<commit>, the hub name."""
    real = root.resolve()
    return origin.split("/")[-1].partition("@")[0] if real.parent.name == "snapshots" else real.name


def read_licence(root: Path) -> str | None:
    """The `license:` line of a model card's front matter."""
    card = root / "README.md"
    if not card.is_file():
        return None
    with card.open(encoding="utf-8", errors="replace") as file:
        text = file.read(1 << 16)
    head = text.split("\n---", 1)[0] if text.startswith("---") else ""
    match = re.search(r"^license:\s*[\"']?([\w.+-]+)", head, re.MULTILINE)
    return match.group(1) if match else None
