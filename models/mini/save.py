"""Step 6: the trained words as a sentence-transformers directory.

    python models/mini/save.py
    flowvec export models/mini/checkpoint -o runtime/flowvec/models/mini --name mini \\
        --weights float16 --overwrite

A BERT without layers is a table of words and a LayerNorm, which leaves a row's direction and takes
its length away. So rows can be whole numbers up to 127, and the bundle stores a byte for each; the
length goes into the row's weight, by which `WordWeights` multiplies it before the mean. A soft-ZCA
whitening without its shift, fitted on 20,000 wiki sentences, is multiplied into the rows. Writes
models/mini/checkpoint. Numbers are rounded once, here, so that the checkpoint and the bundle hold
the same.
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
# They say nothing, but a text of nothing else must have a vector: of each word's share.
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

    The mean of a row's numbers, which LayerNorm takes away, is one direction of many: lost.
    """
    rows = vectors - vectors.mean(1, keepdims=True)
    largest = np.abs(rows).max(1, keepdims=True)
    largest[largest == 0] = 1.0  # of what never occurs
    whole = np.rint(rows / largest * 127) + 0.0  # without -0.0
    weights = weights * rows.std(1)
    weights = (weights / np.median(weights))[group]
    weights[: len(SPECIAL)] = SPECIAL_WEIGHT * weights.max()
    return whole[group], weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--out", type=Path, default=HERE / "checkpoint")
    parser.add_argument("--eps", type=float, default=2.0, help="of the whitening; 0 is none")
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
    """Name classes as transformers 4 and sentence-transformers 2 to 6 all know them."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rsplit('.', 1)[-1]}"
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
