"""Compares ids by the table of words with those of `tokenizers`, text by text.

    python bench/tokenizer_parity.py TOKENIZER.json FILE...

Each line of each file (plain text, or `.xz`) is a text, and so is each of its sentences; then every
character of Unicode in four contexts. Prints how many texts were compared, how many of them the
table left to `tokenizers`, and the processor time of each; exits with 1 at the first difference.
"""

from __future__ import annotations

import io
import lzma
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processor time of one thread

import tokenizers

from flowvec.texts.sentences import split_sentences
from flowvec.tokenizer.word_table import WordTable, ids_to_bytes


def lines_of(paths: Sequence[str]) -> Iterator[str]:
    """The lines of files, and their sentences."""
    for path in map(Path, paths):
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            for line in io.TextIOWrapper(file, encoding="utf-8"):
                text = line.rstrip("\n")
                yield text
                yield from split_sentences(text)


def characters() -> Iterator[str]:
    """Every character, alone and beside others."""
    for code in chain(range(0xD800), range(0xE000, 0x110000)):
        c = chr(code)
        yield from (c, f"a{c}b", f"A {c} B,{c}", f"e{c}\u0301{c}x")


def main(tokenizer_file: str, paths: Sequence[str]) -> int:
    """Compare, and print the figures."""
    tokenizer = tokenizers.Tokenizer.from_file(tokenizer_file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    table = WordTable.for_tokenizer(tokenizer)
    if table is None:
        print("this tokenizer has no table of words")
        return 1
    for name, texts in (("lines and sentences", lines_of(paths)), ("characters", characters())):
        count = left = 0
        table_seconds = whole_seconds = 0.0
        while part := list(islice(texts, 4096)):
            begin = time.process_time()
            found = [table(text) for text in part]
            middle = time.process_time()
            whole = tokenizer.encode_batch_fast(part, add_special_tokens=False)
            whole_seconds += time.process_time() - middle
            table_seconds += middle - begin
            for text, ids, encoding in zip(part, found, whole, strict=True):
                count += 1
                if ids is None:
                    left += 1
                elif ids != ids_to_bytes(encoding.ids):
                    print(f"different: {text!r}")
                    return 1
        print(
            f"{name}: {count} texts are equal, {left} of them left to tokenizers; processor time a "
            f"text: {table_seconds / count * 1e6:.1f} us by words, "
            f"{whole_seconds / count * 1e6:.1f} us by tokenizers"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
