"""Whether a tokenizer tells the two texts of a pair apart by token types.

A model may have a table of two token types, and never have seen the second: sentence-transformers
trains and predicts with what its tokenizer gives. Where that is no `token_type_ids`, all types are
0. So it is the tokenizer that decides, and not the model or its graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from flowvec.bundle.manifest import TOKEN_TYPES
from flowvec.errors import ExportError

__all__ = ["family_of", "gives_token_types"]

# Families of tokenizers whose classes give token types in transformers 4 and 5.
_GIVE = (
    "bert", "canine", "convbert", "deberta", "debertav2", "electra", "ernie", "fnet", "layoutlm",
    "lxmert", "mobilebert", "nezha", "nomicbert", "squeezebert",
)  # fmt: skip
# Families whose classes give none in either.
_GIVE_NONE = (
    "bart", "barthez", "bigbird", "camembert", "distilbert", "gpt2", "llama", "longformer",
    "mbart", "mpnet", "nllb", "qwen2", "rembert", "roberta", "t5", "xlmroberta",
)  # fmt: skip


def gives_token_types(marks: dict[str, Any], config: dict[str, Any], origin: str) -> bool:
    """Whether transformers' tokenizer of a directory gives `token_type_ids`.

    It reads files only, for sources that need no transformers. Classes without a family, such as
    PreTrainedTokenizerFast, give them up to transformers 4. From transformers 5 on, or where
    transformers is not installed, they do not.

    Args:
        marks: content of tokenizer_config.json.
        config: content of config.json.
        origin: name of the source, for messages.

    Raises:
        ExportError: model_input_names is not a list of names.
    """
    names = marks.get("model_input_names")
    if names is not None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ExportError(
                f"{origin} has the model_input_names {names!r}, which is not a list of names"
            )
        return TOKEN_TYPES in names
    family = family_of(marks, config)
    if family in _GIVE:
        return True
    return family not in _GIVE_NONE and _generation() < 5


def family_of(marks: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The family of a directory's tokenizer, from its class or the model's type.

    Args:
        marks: content of tokenizer_config.json.
        config: content of config.json.
    """
    named = marks.get("tokenizer_class") or config.get("tokenizer_class")
    return _family(str(named or config.get("model_type")))


def _family(name: str) -> str:
    """A tokenizer's class or a model's type without what differs between versions."""
    return name.removesuffix("Fast").removesuffix("Tokenizer").lower().translate(_SEPARATORS)


_SEPARATORS = str.maketrans("", "", "-_")


def _generation() -> int:
    """Major version of transformers; 5 if it is not installed."""
    try:
        return int(metadata.version("transformers").partition(".")[0])
    except metadata.PackageNotFoundError:
        return 5
