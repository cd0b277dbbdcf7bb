"""The encoder of a checkpoint: transformers' module, its tokenizer and its limits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import normalizers
from torch import Tensor, nn

from flowvec.errors import ExportError, first_line
from flowvec_export.backbone import NAMES
from flowvec_export.pooling import Pooling, parse_pooling
from flowvec_export.transforms import Transform

__all__ = ["Source", "quiet_transformers", "read_encoder", "read_json"]

# MPNet's attention has a bias by distance, so it runs as transformers' module.
_ARCHITECTURES = (*NAMES, "mpnet")
# RoBERTa and MPNet count positions from their padding token's id on.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")


@dataclass(slots=True)
class Source:
    """What a checkpoint says: everything an export needs.

    Attributes:
        name: last part of the path or hub name.
        origin: what was asked for.
        model: transformers' module, float32, in evaluation mode.
        tokenizer: a `tokenizers` tokenizer without truncation and padding.
        pad_id: the padding token's id.
        max_length: the most tokens of a text.
        pooler: the dense layer over the first token, where the checkpoint has one.
        pooling: the pooling it was made for; None for a plain encoder.
        word_weights: how much each token id counts in that mean, float32 (vocabulary,); None is all
            alike.
        transforms: Dense layers between pooling and normalisation.
        normalise: whether it normalises; None for a plain encoder.
        prompts: prefixes by name.
        default_prompt_name: the prompt used when none is asked for.
        similarity: how its vectors are compared.
        licence: from the model card, if it says.
        tuned: it comes from a sentence-transformers model, which was trained to be compared as it
            is, even where only its encoder was asked for.
    """

    name: str
    origin: str
    model: Any
    tokenizer: tokenizers.Tokenizer
    pad_id: int
    max_length: int
    pooler: nn.Linear | None
    pooling: str | None = None
    word_weights: Tensor | None = None
    transforms: list[Transform] = field(default_factory=list)
    normalise: bool | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    licence: str | None = None
    tuned: bool = False

    def width(self, pooling: str | None) -> int:
        """Length of a pooled vector, after the source's own Dense layers.

        Raises:
            ExportError: there is no such pooling for this source.
        """
        if self.transforms:
            return self.transforms[-1].out_dim
        return self.pool(pooling).out_dim(self.model.config.hidden_size)

    def pool(self, pooling: str | None) -> Pooling:
        """The pooling of that name, or the one that it was made for; `mean` for a plain encoder.

        Raises:
            ExportError: there is no such pooling for this source.
        """
        modes = parse_pooling(pooling or self.pooling or "mean")
        return Pooling(modes, self.pooler, self.word_weights)

    def sha256(self) -> str:
        """SHA-256 (hex) of all weights that a pooled vector depends on, in float32.

        The same checkpoint under another name, or stored in another file format, has the same.
        """
        digest = hashlib.sha256()
        modules: list[nn.Module] = [self.model, *self.transforms]
        for place, module in enumerate(modules):
            for name, tensor in sorted(module.state_dict().items()):
                if name.startswith("pooler.") and self.pooler is None:
                    continue  # not in the checkpoint: transformers fills it with random numbers
                digest.update(f"{place} {name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().float().contiguous().numpy().tobytes())
        if self.word_weights is not None:
            digest.update(b"word weights" + self.word_weights.contiguous().numpy().tobytes())
        return digest.hexdigest()


def read_json(path: Path, kind: type = dict, *, missing_ok: bool = False) -> Any:
    """Read a JSON file that holds a `kind`; None for a missing one where that is allowed."""
    if not path.is_file():
        if missing_ok:
            return None
        raise ExportError(f"{path} is missing")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"cannot read {path}: {error}") from None
    if not isinstance(found, kind):
        raise ExportError(f"{path} must hold a JSON {'object' if kind is dict else 'array'}")
    return found


def read_encoder(root: Path, folder: Path, origin: str, settings: dict[str, Any]) -> Source:
    """The transformer of a checkpoint; `folder` holds it, `root` the whole."""
    config = read_json(folder / "config.json")
    architecture = config.get("model_type")
    if architecture not in _ARCHITECTURES:
        raise ExportError(
            f"{origin} is of the architecture {architecture!r}; flowvec exports "
            f"{', '.join(_ARCHITECTURES)}"
        )
    with quiet_transformers():
        try:
            model, loading = transformers.AutoModel.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
            fast = transformers.AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # transformers raises many kinds
            reason = first_line(error)
            raise ExportError(f"transformers cannot load {origin}: {reason}") from error
    _check_loaded(origin, config, loading, fast)
    positions = model.config.max_position_embeddings
    if architecture in _OFFSET_POSITIONS:
        positions -= model.config.pad_token_id + 1
    asked = settings.get("max_seq_length") or fast.model_max_length
    if isinstance(asked, bool) or not isinstance(asked, int):
        raise ExportError(f"{origin} has the max_seq_length {asked!r}, which is no whole number")
    has_pooler = getattr(model, "pooler", None) is not None and not loading["missing_keys"]
    return Source(
        name=root.resolve().name
        if root.exists() and not _is_hub_cache(root)
        else origin.split("/")[-1],
        origin=origin,
        model=model.eval(),
        tokenizer=_plain_tokenizer(fast, lower_case=bool(settings.get("do_lower_case"))),
        pad_id=int(fast.pad_token_id or 0),
        max_length=int(min(asked, positions)),
        pooler=model.pooler.dense if has_pooler else None,
        licence=_licence(root),
    )


def _check_loaded(
    origin: str, config: dict[str, Any], loading: dict[str, Any], tokenizer: Any
) -> None:
    """Refuse what transformers loads without a word but cannot compute as it was trained."""
    missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise ExportError(f"{origin} lacks weights: {', '.join(sorted(missing)[:3])}, ...")
    # transformers 5 dropped attention with relative keys, and ignores their weights.
    positions = config.get("position_embedding_type") or "absolute"
    unused = [key for key in loading["unexpected_keys"] if ".layer." in key]
    if positions != "absolute" or unused:
        what = f"{positions} positions" if positions != "absolute" else f"weights as {unused[0]}"
        raise ExportError(f"{origin} has {what}, which transformers would ignore")
    if not tokenizer.is_fast:
        raise ExportError(f"{origin} has no tokenizer that `tokenizers` can read")
    if tokenizer.truncation_side != "right":
        raise ExportError(f"{origin} cuts long texts on the left, which is not supported")


def _is_hub_cache(root: Path) -> bool:
    """A download lies under .../snapshots/<commit>: no name for a model."""
    return root.resolve().parent.name == "snapshots"


def _plain_tokenizer(fast: Any, *, lower_case: bool) -> tokenizers.Tokenizer:
    """A copy without truncation and padding, lower-casing first where asked."""
    tokenizer = tokenizers.Tokenizer.from_str(fast.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lower_case:
        steps = [normalizers.Lowercase()]
        if tokenizer.normalizer is not None:
            steps.append(tokenizer.normalizer)
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _licence(root: Path) -> str | None:
    """The `license:` line of a model card's front matter."""
    card = root / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    head = text.split("\n---", 1)[0] if text.startswith("---") else ""
    found = re.search(r"^license:\s*[\"']?([\w.+-]+)", head, re.MULTILINE)
    return found.group(1) if found else None


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' loading report and progress bars off the terminal."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
