"""Step 1: creates the vocabulary. It was run once; the result is committed with the checkpoint.

    python models/mini/vocabulary.py --wordnet /usr/share/wordnet

The vocabulary is lower-cased WordPiece. All forms of a word share one row of the model, so a form
costs only a few bytes, and the vocabulary can consist of whole words. They are the most frequent
words of Wikipedia, counted with all their forms. Words of WordNet count five times, because an
encyclopedia is full of names. The rest are single characters, and pieces that a WordPiece trainer
finds at the ends of words. Writes `tokenizer.json` to models/mini/work.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from words import Lemmatizer, read_wordnet

from flowvec_bench.texts import read_paragraphs

HERE = Path(__file__).resolve().parent
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
IN_WORDNET = 5  # factor of the counts of WordNet's words
LEAST = 4  # fewest occurrences of a form


def empty_tokenizer(model: models.WordPiece) -> Tokenizer:
    """BERT's lower-casing tokenizer around a model."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def count_words(text: Path) -> Counter[str]:
    """How often each run of letters and digits occurs, lower-cased as the tokenizer does."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for paragraph in read_paragraphs(text):
        counts.update(re.findall(r"[^\W_]+", normalizer.normalize_str(paragraph)))
    return counts


def train_pieces(text: Path, size: int, paragraphs: int) -> list[str]:
    """Single characters, and pieces that continue a word."""
    tokenizer = empty_tokenizer(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=SPECIAL_TOKENS,
        limit_alphabet=600,
        continuing_subword_prefix="##",
    )
    tokenizer.train_from_iterator(islice(read_paragraphs(text), paragraphs), trainer)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [p for p, _ in pieces if p not in SPECIAL_TOKENS and (p.startswith("##") or len(p) == 1)]


def choose_words(counts: Counter[str], lemmatizer: Lemmatizer, rows: int) -> list[str]:
    """All forms of the `rows` most frequent words; the forms of a word are adjacent."""
    forms: dict[str, list[str]] = defaultdict(list)
    weight: Counter[str] = Counter()
    for form, count in counts.most_common():
        if count >= LEAST and len(form) > 1:
            word = lemmatizer(form)
            forms[word].append(form)
            weight[word] += count * (IN_WORDNET if lemmatizer.knows(word) else 1)
    return [form for word, _ in weight.most_common(rows) for form in forms[word]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=Path("../shared/data/text/wiki.txt.xz"))
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--out", type=Path, default=HERE / "work/tokenizer.json")
    parser.add_argument("--rows", type=int, default=33_000, help="rows of the model")
    parser.add_argument("--pieces", type=int, default=5_000, help="pieces that the trainer creates")
    parser.add_argument(
        "--paragraphs", type=int, default=400_000, help="paragraphs that the trainer reads"
    )
    args = parser.parse_args()
    pieces = train_pieces(args.text, args.pieces, args.paragraphs)
    counts = count_words(args.text)
    lemmatizer = Lemmatizer(args.wordnet, read_wordnet(args.wordnet), counts)
    words = choose_words(counts, lemmatizer, args.rows - len(pieces) - len(SPECIAL_TOKENS))
    tokens = dict.fromkeys([*SPECIAL_TOKENS, *pieces, *words])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = empty_tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out))
    print(
        f"{len(vocabulary):,} tokens: {len(pieces):,} pieces and characters, {len(words):,} words"
    )


if __name__ == "__main__":
    main()
