"""Step 1: wiki text -> WordPiece vocabulary -> token ids on disk.

    python models/mini/prepare.py --text ../shared/data/text/wiki.txt.xz

Writes to models/mini/work: `tokenizer.json` (lower-cased WordPiece), `ids.npy` (uint16, all
sentences end to end, without special tokens), `offsets.npy` (int64, sentences + 1) and
`paragraph.npy` (int32, the paragraph of each sentence).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from flowvec_bench.texts import read_paragraphs, split_sentences

HERE = Path(__file__).resolve().parent
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_tokenizer(text: Path, vocabulary_size: int, paragraphs: int) -> Tokenizer:
    """Train a BERT-style lower-cased WordPiece tokenizer on the first `paragraphs` paragraphs."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL_TOKENS,
        limit_alphabet=600,
        continuing_subword_prefix="##",
    )
    tokenizer.train_from_iterator(islice(read_paragraphs(text), paragraphs), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def sentences_with_paragraph(text: Path) -> Iterator[tuple[int, str]]:
    """Yield (paragraph number, sentence) for sentences of at least four words."""
    for number, paragraph in enumerate(read_paragraphs(text)):
        for sentence in split_sentences(paragraph):
            if sentence.count(" ") >= 3:
                yield number, sentence


def tokenize(text: Path, tokenizer: Tokenizer, out: Path) -> None:
    """Write the ids of every sentence, cut at 126 tokens, as three flat arrays."""
    chunks: list[np.ndarray] = []
    lengths: list[int] = []
    paragraphs: list[int] = []
    stream = sentences_with_paragraph(text)
    while window := list(islice(stream, 20_000)):
        encodings = tokenizer.encode_batch_fast([s for _, s in window], add_special_tokens=False)
        for (number, _), encoding in zip(window, encodings, strict=True):
            ids = encoding.ids[:126]
            chunks.append(np.asarray(ids, dtype=np.uint16))
            lengths.append(len(ids))
            paragraphs.append(number)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    np.save(out / "ids.npy", np.concatenate(chunks))
    np.save(out / "offsets.npy", offsets)
    np.save(out / "paragraph.npy", np.asarray(paragraphs, dtype=np.int32))
    print(f"{len(lengths):,} sentences, {offsets[-1]:,} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=Path("../shared/data/text/wiki.txt.xz"))
    parser.add_argument("--out", type=Path, default=HERE / "work")
    parser.add_argument("--vocabulary", type=int, default=12_000)
    parser.add_argument("--tokenizer-paragraphs", type=int, default=400_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(args.text, args.vocabulary, args.tokenizer_paragraphs)
    tokenizer.save(str(args.out / "tokenizer.json"))
    tokenize(args.text, tokenizer, args.out)


if __name__ == "__main__":
    main()
