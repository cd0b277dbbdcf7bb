"""Step 2: tokenizes Wikipedia text, and writes the token ids to disk.

    python models/mini/prepare.py --text ../shared/data/text/wiki.txt.xz

Writes to models/mini/work: `tokenizer.json` (lower-cased WordPiece), `ids.npy` (uint16, all
sentences concatenated, without special tokens), `offsets.npy` (int64, sentences + 1) and
`paragraph.npy` (int32, the paragraph of each sentence).

The vocabulary is the checkpoint's, which `vocabulary.py` created once: its trainer breaks ties
differently in each run, so another run gives other pieces.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from flowvec_bench.texts import read_paragraphs, split_sentences

HERE = Path(__file__).resolve().parent


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
    parser.add_argument("--tokenizer", type=Path, default=HERE / "checkpoint/tokenizer.json")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(args.out / "tokenizer.json"))
    tokenize(args.text, tokenizer, args.out)


if __name__ == "__main__":
    main()
