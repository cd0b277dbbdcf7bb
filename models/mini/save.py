"""Step 4: the best checkpoint as a sentence-transformers directory with float16 weights.

    python models/mini/save.py
    flowvec export models/mini/checkpoint -o runtime/flowvec/models/mini --name mini \\
        --weights float16 --overwrite

Training leaves the vectors somewhat anisotropic: a soft-ZCA whitening, fitted on 20,000 wiki
sentences and mild (eps is one mean eigenvalue), is multiplied into Dense. Writes
models/mini/checkpoint. The weights are rounded to float16 once, here, so that the
checkpoint and the bundle hold the same numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from train import Corpus, Encoder, embed, soft_zca
from transformers import BertConfig, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
CARD = "---\nlicense: apache-2.0\n---\n\nThe checkpoint behind `mini`; its card is ../README.md.\n"


def whiten(model: Encoder, corpus: Corpus, eps: float, seed: int) -> None:
    """Multiply a soft-ZCA whitening of the model's own vectors of wiki sentences into Dense."""
    chosen = np.random.default_rng(seed).choice(len(corpus), 20_000, replace=False)
    vectors = embed(model, [corpus.tokens(i, i + 1, 64) for i in chosen])
    matrix, bias = (torch.from_numpy(array) for array in soft_zca(vectors, eps))
    with torch.no_grad():
        model.dense.bias.copy_(matrix @ model.dense.bias + bias)
        model.dense.weight.copy_(matrix @ model.dense.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--out", type=Path, default=HERE / "checkpoint")
    parser.add_argument("--eps", type=float, default=1.0, help="of the whitening")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()

    config = BertConfig(**json.loads((HERE / "config.json").read_text()))
    model = Encoder(config)
    model.load_state_dict(torch.load(args.work / "best.pt", weights_only=True))
    whiten(model, Corpus.load(args.work), args.eps, args.seed)
    # A text has one segment, whose embedding the graph adds to the positions: doing so before the
    # rounding makes the checkpoint and the bundle hold the same numbers.
    types = model.bert.embeddings.token_type_embeddings.weight
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.add_(types[0])
        types.sub_(types[0].clone())
    model.half()

    plain = args.work / "encoder"
    model.bert.save_pretrained(plain)
    special = {
        name: f"[{name.split('_')[0].upper()}]"
        for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    }
    PreTrainedTokenizerFast(
        tokenizer_file=str(args.work / "tokenizer.json"),
        model_max_length=config.max_position_embeddings,
        **special,
    ).save_pretrained(plain)

    dense = Dense(config.hidden_size, config.hidden_size, activation_function=torch.nn.Identity())
    dense.linear.load_state_dict(model.dense.state_dict())
    shutil.rmtree(args.out, ignore_errors=True)
    modules = [
        Transformer(str(plain), model_kwargs={"add_pooling_layer": False}),
        Pooling(config.hidden_size),
        dense,
        Normalize(),
    ]
    sentence_transformer = SentenceTransformer(modules=modules, device="cpu")
    sentence_transformer.half().save(str(args.out), create_model_card=False)
    (args.out / "README.md").write_text(CARD)


if __name__ == "__main__":
    main()
