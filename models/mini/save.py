"""Step 6: saves the trained words as a sentence-transformers directory.

    python models/mini/save.py
    flowvec export models/mini/checkpoint -o runtime/flowvec/models/mini --name mini \\
        --weights float16 --overwrite

A BERT without layers is a table of words and a LayerNorm, which keeps a row's direction and removes
its length. So rows can be whole numbers up to 127, for which the bundle stores a byte each. The
length goes into the row's weight, by which `WordWeights` multiplies the row before the mean. A
soft-ZCA whitening without its shift, fitted on 20,000 Wikipedia sentences, is multiplied into the
rows. Writes models/mini/checkpoint. Numbers are rounded only here, so that the checkpoint and the
bundle are equal.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from corpus import Corpus
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights
from train import Floats, WordModel, soft_zca
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
CARD = "---\nlicense: apache-2.0\n---\n\nThe checkpoint behind `mini`; its card is ../README.md.\n"
SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
# Special tokens mean nothing, but a text without other tokens must have a vector. This is their
# share of the largest weight.
SPECIAL_WEIGHT = 1e-4


def whitened(work: Path, eps: float, seed: int) -> tuple[Floats, Floats]:
    """Vectors (words, width) after the whitening, and weights (words,)."""
    trained = np.load(work / "trained.npz")
    vectors, weights = trained["vectors"], trained["weights"]
    if eps:
        corpus = Corpus.load(work)
        group = torch.from_numpy(np.load(work / "words.npz")["group"])
        model = WordModel(group, torch.from_numpy(vectors), torch.from_numpy(weights))
        chosen = np.random.default_rng(seed).choice(len(corpus), 20_000, replace=False)
        with torch.no_grad():
            sample = model(corpus.sentences(chosen)).numpy()
        vectors = vectors @ soft_zca(sample, eps)[1]
    return vectors, weights


def table(vectors: Floats, weights: Floats, group: Floats) -> tuple[Floats, Floats]:
    """Rows of whole numbers from -127 to 127, (tokens, width), and each row's weight (tokens,).

    LayerNorm removes the mean of a row's numbers, so that direction, one of many, is lost.
    """
    rows = vectors - vectors.mean(1, keepdims=True)
    largest = np.abs(rows).max(1, keepdims=True)
    largest[largest == 0] = 1.0  # words that never occur
    whole = np.rint(rows / largest * 127) + 0.0  # no -0.0
    weights = weights * rows.std(1)
    weights = (weights / np.median(weights))[group]
    weights[: len(SPECIAL)] = SPECIAL_WEIGHT * weights.max()
    return whole[group], weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--out", type=Path, default=HERE / "checkpoint")
    parser.add_argument(
        "--eps", type=float, default=2.0, help="eps of the whitening; 0 leaves it out"
    )
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    tokenizer = (args.work / "tokenizer.json").resolve()
    group = np.load(args.work / "words.npz")["group"]
    rows, weights = table(*whitened(args.work, args.eps, args.seed), group)

    config = BertConfig(
        **json.loads((HERE / "config.json").read_text()),
        vocab_size=len(rows),
        hidden_size=rows.shape[1],
    )
    bert = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        bert.embeddings.word_embeddings.weight.copy_(torch.from_numpy(rows))
        bert.embeddings.position_embeddings.weight.zero_()
        bert.embeddings.token_type_embeddings.weight.zero_()
    plain = args.work / "encoder"
    bert.half().save_pretrained(plain)
    PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer),
        model_max_length=config.max_position_embeddings,
        **{name: f"[{name.split('_')[0].upper()}]" for name in SPECIAL},
    ).save_pretrained(plain)

    transformer = Transformer(str(plain), model_kwargs={"add_pooling_layer": False})
    pieces = transformer.tokenizer.convert_ids_to_tokens(range(len(rows)))
    shutil.rmtree(args.out, ignore_errors=True)
    modules = [
        transformer,
        WordWeights(pieces, {p: float(f"{w:.5g}") for p, w in zip(pieces, weights, strict=True)}),
        Pooling(rows.shape[1]),
        Normalize(),
    ]
    sentence_transformer = SentenceTransformer(modules=modules, device="cpu")
    sentence_transformer.half().save(str(args.out), create_model_card=False)
    name_as_older_versions_do(args.out)
    (args.out / "README.md").write_text(CARD)


def name_as_older_versions_do(folder: Path) -> None:
    """Write class names that transformers 4 and sentence-transformers 2 to 6 have."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rsplit('.', 1)[-1]}"
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
