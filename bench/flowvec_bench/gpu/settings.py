"""What all steps share: folders, models, texts and sizes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from flowvec.demo import load_passages
from flowvec.texts.sentences import split_sentences
from flowvec_bench.peers.shapes import SHAPES
from flowvec_bench.texts import read_paragraphs

__all__ = ["KINDS", "MAX_LENGTH", "Kind", "Settings", "flops_per_token", "sizes_of"]

Kind = Literal["sentences", "passages"]
KINDS: tuple[Kind, ...] = ("sentences", "passages")
MAX_LENGTH = 256
# Words of a passage, at least.
_PASSAGE_WORDS = 150
_STAND_IN_SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64
}  # fmt: skip
# Texts of a timed round, so that each takes seconds on a fast GPU.
_COUNTS: dict[str, dict[Kind, int]] = {
    "minilm-l6": {"sentences": 20_000, "passages": 4_000},
    "bert-base": {"sentences": 10_000, "passages": 2_000},
    "bert-large": {"sentences": 4_000, "passages": 1_000},
}


def sizes_of(shape: str, *, stand_in: bool) -> dict[str, int]:
    """The sizes of a shape; a stand-in has those of a tiny model under every name."""
    return _STAND_IN_SIZES if stand_in else SHAPES[shape]


def flops_per_token(sizes: dict[str, int]) -> float:
    """Floating-point operations of an encoder's matrix products with weights, for one token."""
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    return 2.0 * sizes["num_hidden_layers"] * (4 * width * width + 2 * width * inner)


@dataclass(frozen=True, slots=True)
class Settings:
    """What all steps share; a step's process reads it from a file.

    Attributes:
        work: the folder of models and installed wheels.
        tokenizer: a directory with a transformers tokenizer.
        wheels: the folder of wheels to install; None uses the environment as it is.
        corpus: a text file with a paragraph on each line; None is flowvec's own small one.
        stand_in: the CPU provider runs under the name of CUDA's, on tiny models: to test the steps
            themselves without a GPU.
    """

    work: str
    tokenizer: str
    wheels: str | None = None
    corpus: str | None = None
    stand_in: bool = False

    def save(self, path: Path) -> None:
        """Write the settings for `load`."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read what `save` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    @property
    def packages(self) -> Path:
        """Where wheels are installed; it comes first in a step's search path."""
        return Path(self.work) / "packages"

    def source(self, shape: str) -> Path:
        """The model as sentence-transformers reads it."""
        return Path(self.work) / shape / "source"

    def bundle(self, shape: str) -> Path:
        """The model as flowvec reads it."""
        return Path(self.work) / shape / "bundle"

    def count(self, shape: str, kind: Kind) -> int:
        """Texts of a timed round."""
        return 200 if self.stand_in else _COUNTS[shape][kind]

    def texts(self, kind: Kind, count: int, seed: int = 0) -> list[str]:
        """Texts in random order; a small corpus is repeated.

        Args:
            kind: sentences, or passages of at least 150 words.
            count: how many.
            seed: of the order.
        """
        pool = list(islice(self._sentences() if kind == "sentences" else self._passages(), count))
        repeated = [pool[i % len(pool)] for i in range(count)]
        random.Random(seed).shuffle(repeated)
        return repeated

    def _paragraphs(self) -> Iterator[str]:
        if self.corpus is not None:
            yield from read_paragraphs(Path(self.corpus))
        else:
            yield from (passage.text for passage in load_passages())

    def _sentences(self) -> Iterator[str]:
        for paragraph in self._paragraphs():
            yield from split_sentences(paragraph)

    def _passages(self) -> Iterator[str]:
        words: list[str] = []
        for paragraph in self._paragraphs():
            words += paragraph.split()
            if len(words) >= _PASSAGE_WORDS:
                yield " ".join(words)
                words = []
