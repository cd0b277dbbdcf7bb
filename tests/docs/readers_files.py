"""Small files with the names that the documentation uses.

A page gets those of the table that its blocks name. Nothing here comes from ../shared/data.
"""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from tests.conftest import first_layers_of_backbone
from tests.docs.pages import ROOT

_WHO = (
    "The cat", "A dog", "My neighbour", "The old train", "A young painter", "The committee",
    "An engineer", "The river",
)  # fmt: skip
_DOES = ("sleeps in", "walks through", "looks at", "talks about", "waits for", "returns to")
_WHAT = (
    "the garden", "a quiet street", "the new bridge", "an open window", "the harbour", "the report",
)  # fmt: skip
_WHEN = ("at night", "in the morning", "on Monday", "after the rain", "every year")

# As many different ones as the fit of a flow takes at least, and some.
SENTENCES = [" ".join(words) + "." for words in itertools.product(_WHO, _DOES, _WHAT, _WHEN)]
ROWS = 40


def _some(count: int, seed: int) -> list[str]:
    chosen = np.random.default_rng(seed).choice(len(SENTENCES), count, replace=False)
    return [SENTENCES[i] for i in chosen]


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _json_rows(texts: list[str], first: int) -> list[str]:
    return [
        json.dumps(
            {
                "id": f"t{first + i}",
                "text": text,
                "lang": ("en", "de")[(first + i) % 2],
                "year": 2018 + (first + i) % 8,
            }
        )
        for i, text in enumerate(texts)
    ]


def _texts_jsonl(path: Path) -> None:
    _write_lines(path, _json_rows(_some(ROWS, 1), 0))


def _more_jsonl(path: Path) -> None:
    """Half of it has the ids of texts.jsonl: ten equal rows, ten changed ones."""
    texts = _some(ROWS, 1)[ROWS // 2 :] + _some(ROWS // 2, 2)
    texts[:10] = [f"Once more: {text}" for text in texts[:10]]
    _write_lines(path, _json_rows(texts, ROWS // 2))


def _texts_csv(path: Path) -> None:
    rows = [f'{i},"{text}"' for i, text in enumerate(_some(ROWS, 3))]
    _write_lines(path, ["id,text", *rows])


def _texts_folder(path: Path) -> None:
    path.mkdir()
    for part in range(3):
        rows = _json_rows(_some(ROWS, 10 + part), part * ROWS)
        with gzip.open(path / f"{part}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(rows) + "\n")


def _questions_txt(path: Path) -> None:
    things = ("a bicycle", "an old radio", "a wooden chair", "a laptop", "a garden fence")
    ways = ("How do I repair {}?", "How can I repair {}?", "Where can I buy {}?", "What is {}?")
    _write_lines(path, [way.format(thing) for thing in things for way in ways])


def _paragraphs_txt(path: Path) -> None:
    _write_lines(path, [" ".join(_some(6, seed)) for seed in range(20, 70)])


def _sts_folder(path: Path) -> None:
    """A pair's score is how many of its four parts are the same."""
    path.mkdir()
    rng = np.random.default_rng(0)
    for name in ("dev", "test"):
        lines = ["score\tsentence1\tsentence2"]
        for _ in range(30):
            left = [rng.integers(len(part)) for part in (_WHO, _DOES, _WHAT, _WHEN)]
            right = [
                i if rng.random() < 0.5 else rng.integers(len(part))
                for i, part in zip(left, (_WHO, _DOES, _WHAT, _WHEN), strict=True)
            ]
            score = sum(i == j for i, j in zip(left, right, strict=True)) * 1.25
            lines.append(f"{score}\t{_sentence(left)}\t{_sentence(right)}")
        _write_lines(path / f"{name}.tsv", lines)


def _sentence(parts: list[int]) -> str:
    words = (_WHO, _DOES, _WHAT, _WHEN)
    return " ".join(word[i] for word, i in zip(words, parts, strict=True)) + "."


def _beir_folder(path: Path) -> None:
    (path / "qrels").mkdir(parents=True)
    texts = _some(ROWS, 5)
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": texts[i].removesuffix(".")} for i in range(10)]
    _write_lines(path / "corpus.jsonl", list(map(json.dumps, corpus)))
    _write_lines(path / "queries.jsonl", list(map(json.dumps, queries)))
    qrels = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(10))]
    _write_lines(path / "qrels" / "test.tsv", qrels)


def _my_checkpoint(path: Path) -> None:
    """The first layer of the repository's backbone, with mean pooling: a trained BERT."""
    config = json.loads((first_layers_of_backbone(path, 1) / "config.json").read_text())
    kind = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{kind}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kind}.Pooling"},
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": config["hidden_size"], "pooling_mode_mean_tokens": True}
    (path / "1_Pooling/config.json").write_text(json.dumps(pooling))


def _my_onnx(path: Path) -> None:
    """What Optimum made of a tiny BERT."""
    shutil.copytree(ROOT / "tests/data/optimum/bert", path)


def _my_reranker(path: Path) -> None:
    """A tiny random cross-encoder, exported."""
    shutil.copytree(ROOT / "tests/data/bundles/reranker", path)


def _my_sparse(path: Path) -> None:
    """A tiny random SPLADE model, exported."""
    shutil.copytree(ROOT / "tests/data/bundles/sparse", path)


def _my_colbert(path: Path) -> None:
    """A tiny random ColBERT-style model, exported."""
    shutil.copytree(ROOT / "tests/data/bundles/multi_vector", path)


def _my_static(path: Path) -> None:
    """Random vectors for the words of the sentences, as model2vec writes them."""
    words = sorted({word for text in SENTENCES for word in text.lower().rstrip(".").split()})
    tokenizer = tokenizers.Tokenizer(
        WordLevel({word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}, "[UNK]")
    )
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    rows = np.random.default_rng(6).standard_normal((len(words) + 2, 64), dtype=np.float32)
    save_file({"embeddings": rows}, path / "model.safetensors")
    config = {"model_type": "model2vec", "normalize": True, "hidden_dim": 64}
    (path / "config.json").write_text(json.dumps(config))


# `my-bundle`, which takes an export of `my-checkpoint`, is the fixture `my_bundle`'s.
READERS_FILES: dict[str, Callable[[Path], None]] = {
    "texts.txt": lambda path: _write_lines(path, SENTENCES[:1200]),
    "texts.jsonl": _texts_jsonl,
    "more.jsonl": _more_jsonl,
    "texts.csv": _texts_csv,
    "texts": _texts_folder,
    "questions.txt": _questions_txt,
    "paragraphs.txt": _paragraphs_txt,
    "sts": _sts_folder,
    "beir-folder": _beir_folder,
    "my-checkpoint": _my_checkpoint,
    "my-colbert": _my_colbert,
    "my-onnx": _my_onnx,
    "my-reranker": _my_reranker,
    "my-sparse": _my_sparse,
    "my-static": _my_static,
}
