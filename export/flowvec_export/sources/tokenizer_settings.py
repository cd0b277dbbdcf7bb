"""Settings of a tokenizer that are in files beside tokenizer.json.

transformers makes a tokenizer from several files: tokenizer_config.json and its relatives change
what tokenizer.json says. Here they do the same for sources that are read without transformers; what
cannot be applied is refused, so that a directory has one tokenization. Static embedders are
different: their own libraries read tokenizer.json alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from flowvec.errors import ExportError
from flowvec_export.sources.files import read_json
from flowvec_export.sources.token_types import family_of
from flowvec_export.sources.tokenizer import read_tokenizer

__all__ = ["TokenizerFiles", "read_with_settings"]

_CONFIG = "tokenizer_config.json"
# Families whose classes normalize texts by these settings, with their defaults.
_BERT = (
    "bert", "bros", "convbert", "distilbert", "electra", "ernie", "layoutlm", "lxmert",
    "megatronbert", "mobilebert", "mpnet", "nezha", "nomicbert", "realm", "retribert",
    "splinter", "squeezebert",
)  # fmt: skip
_BERT_SETTINGS: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
_BERT_TOKENS = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}  # fmt: skip
_MPNET_TOKENS = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "[UNK]", "sep_token": "</s>",
    "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip
# Families whose classes read `do_lower_case` too, by a normalizer of their own.
_CASED = ("albert", "cpm", "debertav2", "fnet", "funnel", "rembert", "roformer", "xlnet")
# Families whose classes set `add_prefix_space`, which is false unless a file says otherwise.
_BYTES = ("bart", "deberta", "gpt2", "led", "longformer", "luke", "mvp", "roberta")
_NAMED = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_LISTED = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer, and what the files beside it say.

    Attributes:
        tokenizer: as transformers makes it from all files.
        settings: content of tokenizer_config.json, with the names of special tokens that
            special_tokens_map.json gives where transformers reads that.
    """

    tokenizer: tokenizers.Tokenizer
    settings: dict[str, Any]


def read_with_settings(
    folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> TokenizerFiles:
    """Read tokenizer.json, and apply the files beside it as transformers does.

    Args:
        folder: the directory.
        settings: content of its tokenizer_config.json.
        config: content of its config.json, which may name the tokenizer's class.

    Raises:
        ExportError: a file cannot be read, or it disagrees with tokenizer.json in a way that
            transformers' versions resolve differently, or that needs a token which the model lacks.
    """
    settings = dict(settings)
    lists_tokens = "added_tokens_decoder" in settings
    if not lists_tokens:  # as older versions of transformers save it
        settings |= read_json(folder / "special_tokens_map.json", missing_ok=True) or {}
    files = _Files(folder, settings, family_of(settings, config))
    if settings.get("auto_map"):
        raise files.refused(
            "auto_map", "names Python code of its own for the tokenizer, which is not run"
        )
    tokenizer = files.normalized(read_tokenizer(folder / "tokenizer.json"))
    tokenizer = files.prefixed(tokenizer)
    if lists_tokens:
        files.check_all_listed(tokenizer)
        files.add(tokenizer, settings["added_tokens_decoder"])
    else:
        older = read_json(folder / "added_tokens.json", missing_ok=True) or {}
        if any(type(number) is not int for number in older.values()) or (
            len(set(older.values())) < len(older)
        ):
            raise ExportError(
                f"{folder / 'added_tokens.json'} does not give each of its tokens an id of its own"
            )
        files.add(tokenizer, {number: {"content": token} for token, number in older.items()})
    files.name(tokenizer)
    files.check_frame(tokenizer)
    return TokenizerFiles(tokenizer, settings)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of one directory, for messages and settings.

    Attributes:
        folder: the directory.
        settings: see `TokenizerFiles`.
        family: the family of the tokenizer's class.
    """

    folder: Path
    settings: Mapping[str, Any]
    family: str

    def refused(self, field: str, reason: str, file: str = _CONFIG) -> ExportError:
        """The error about a field; it says what to do."""
        return ExportError(
            f"{self.folder}: {field} of {file} and tokenizer.json disagree: {file} {reason}. "
            "Correct the one that is wrong, or write both again with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )

    def normalized(self, tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """The tokenizer with the normalization that its class takes from settings."""
        content = json.loads(tokenizer.to_str())
        if self.family not in _BERT:
            self._check_case(tokenizer)
            return tokenizer
        own = content["normalizer"] or {"type": "BertNormalizer", "clean_text": True}
        wanted = {inner: self._flag(n, default) for n, (inner, default) in _BERT_SETTINGS.items()}
        self._check_parts(content, own)
        unknown = content["model"].get("unk_token")
        if unknown is not None and (named := self._content("unk_token")) not in (None, unknown):
            raise self.refused("unk_token", f"says {named!r}, and tokenizer.json {unknown!r}")
        if own | wanted == content["normalizer"]:
            return tokenizer
        content["normalizer"] = own | wanted
        return tokenizers.Tokenizer.from_str(json.dumps(content))

    def _check_parts(self, content: Mapping[str, Any], normalizer: Mapping[str, Any]) -> None:
        """Refuse parts of tokenizer.json that versions of transformers replace or keep."""
        splitter = (content["pre_tokenizer"] or {}).get("type")
        prefix = content["model"].get("continuing_subword_prefix")
        for part, own, of_class in (
            ("normalizer", normalizer["type"], "BertNormalizer"),
            ("clean_text", normalizer.get("clean_text", True), True),
            ("pre_tokenizer", splitter, "BertPreTokenizer"),
            ("model", content["model"]["type"], "WordPiece"),
            ("continuing_subword_prefix", prefix, "##"),
        ):
            if own != of_class:
                raise self.refused(
                    "tokenizer_class",
                    f"makes it a tokenizer of the family {self.family!r}, whose {part} is "
                    f"{of_class!r}, and tokenizer.json has {own!r}; to read tokenizer.json as it "
                    'is, set "tokenizer_class" to "PreTrainedTokenizerFast"',
                )

    def _check_case(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Refuse a `do_lower_case` that the class applies in a way of its own."""
        if self.family not in _CASED or self.settings.get("do_lower_case") is None:
            return
        is_lower = (
            tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("A") != "A"
        )
        if is_lower != (says := self._flag("do_lower_case", False)):
            raise self.refused(
                "do_lower_case",
                f"says {json.dumps(says)}, and tokenizer.json "
                f"{'makes' if is_lower else 'does not make'} texts lower case",
            )

    def prefixed(self, tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """The tokenizer with `add_prefix_space` as the settings say."""
        default = False if self.family in _BYTES else None
        says = self._flag("add_prefix_space", default)
        content = json.loads(tokenizer.to_str())
        steps = [step for step in _steps(content["pre_tokenizer"]) if _adds_space(step) is not None]
        if says is None or all(_adds_space(step) == says for step in steps):
            return tokenizer
        if default is None or content["pre_tokenizer"].get("type") != "ByteLevel":
            raise self.refused(
                "add_prefix_space",
                f"says {json.dumps(says)}, and tokenizer.json {json.dumps(not says)}",
            )
        content["pre_tokenizer"]["add_prefix_space"] = says
        return tokenizers.Tokenizer.from_str(json.dumps(content))

    def check_all_listed(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Refuse an added token of tokenizer.json that tokenizer_config.json does not list."""
        listed = {self._token(value)["content"] for value in self._listed().values()}
        named = set(self._named().values())
        for token in tokenizer.get_added_tokens_decoder().values():
            if token.content not in listed | named:
                raise self.refused(
                    "added_tokens_decoder",
                    f"does not list {token.content!r}, which tokenizer.json adds",
                )

    def add(self, tokenizer: tokenizers.Tokenizer, tokens: Mapping[Any, Any]) -> None:
        """Make tokens of the vocabulary one token each in a text, as added tokens are.

        Args:
            tokenizer: is changed.
            tokens: by id, as tokenizer_config.json lists them.
        """
        is_listed = "added_tokens_decoder" in self.settings
        field, file = ("added_tokens_decoder", _CONFIG) if is_listed else ("", "added_tokens.json")
        added = tokenizer.get_added_tokens_decoder()
        specials = set(self._named().values())
        for number, value in sorted(tokens.items(), key=lambda item: int(item[0])):
            token = self._token(value)
            content = token["content"]
            own = tokenizer.token_to_id(content)
            is_next = own is None and int(number) == tokenizer.get_vocab_size()
            if own != int(number) and not is_next:
                in_json = "does not have it" if own is None else f"gives it the id {own}"
                raise self.refused(
                    field or repr(content),
                    f"gives {content!r} the id {number}, and tokenizer.json {in_json}",
                    file,
                )
            if own not in added:
                special = bool(token.get("special", content in specials))
                self._mark(tokenizer, token | {"special": special})
            elif is_listed and (
                other := [f for f in _FLAGS if bool(token.get(f)) != getattr(added[own], f)]
            ):
                raise self.refused(
                    field, f"has another {other[0]} for {content!r} than tokenizer.json", file
                )

    def name(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Make the special tokens that the files name one token each in a text."""
        values = [*(self.settings.get(key) for key in _NAMED if key in self._named())]
        for key in _LISTED:
            listed = self.settings.get(key) or []
            if not isinstance(listed, list | dict):
                raise ExportError(
                    f"{self.folder / _CONFIG} sets {key} to {json.dumps(listed)}, which is not a "
                    "list of tokens"
                )
            values += list(listed.values()) if isinstance(listed, dict) else list(listed)
        contents = [self._token(value) for value in values if value]
        contents += [{"content": text} for text in self._named().values()]
        for token in contents:
            added = {t.content for t in tokenizer.get_added_tokens_decoder().values()}
            if token["content"] not in added:
                self._mark(tokenizer, token | {"special": True})

    def check_frame(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Refuse other tokens around a text than those that the settings name."""
        if self.family not in _BERT:
            return
        named = self._named()
        frame = [named["cls_token"], named["sep_token"]]
        if (own := tokenizer.encode("").tokens[:2]) != frame:
            raise self.refused(
                "cls_token and sep_token",
                f"has {' and '.join(frame)} around a text, and tokenizer.json "
                f"{' and '.join(own) or 'nothing'}",
            )

    def _mark(self, tokenizer: tokenizers.Tokenizer, token: Mapping[str, Any]) -> None:
        special = bool(token["special"])
        flags = {name: bool(token.get(name)) for name in _FLAGS if name != "normalized"}
        normalized = bool(token.get("normalized", not special))
        added = tokenizers.AddedToken(
            token["content"], special=special, normalized=normalized, **flags
        )
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])

    def _named(self) -> dict[str, str]:
        """The special tokens by their names, with the class's own."""
        defaults = _MPNET_TOKENS if self.family == "mpnet" else _BERT_TOKENS
        defaults = defaults if self.family in _BERT else {}
        named = {key: self._content(key) for key in _NAMED}
        return defaults | {key: token for key, token in named.items() if token is not None}

    def _content(self, key: str) -> str | None:
        value = self.settings.get(key)
        return None if value is None else str(self._token(value)["content"])

    def _listed(self) -> Mapping[Any, Any]:
        listed = self.settings["added_tokens_decoder"]
        if not isinstance(listed, dict) or not all(str(number).isdecimal() for number in listed):
            raise ExportError(
                f"{self.folder / _CONFIG} has an added_tokens_decoder that is not a map from ids "
                "to tokens"
            )
        return listed

    def _token(self, value: Any) -> dict[str, Any]:
        token = {"content": value} if isinstance(value, str) else value
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise ExportError(f"{self.folder / _CONFIG} names a token {value!r}, which is not one")
        return dict(token)

    def _flag(self, name: str, default: bool | None) -> bool | None:
        value = self.settings.get(name, default)
        if not isinstance(value, bool | None) or (value is None and default is not None):
            raise ExportError(
                f"{self.folder / _CONFIG} sets {name} to {json.dumps(value)}, which is not true or "
                "false"
            )
        return value


def _steps(pre_tokenizer: Any) -> Iterator[dict[str, Any]]:
    """The pre-tokenizers of a sequence, or the only one."""
    if isinstance(pre_tokenizer, dict):
        yield pre_tokenizer
        for step in pre_tokenizer.get("pretokenizers", []):
            yield from _steps(step)


def _adds_space(step: Mapping[str, Any]) -> bool | None:
    """Whether a pre-tokenizer puts a space before a text; None if that is not its business."""
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["add_prefix_space"]) if "add_prefix_space" in step else None
