"""Saves the pre-trained weights as a Hugging Face directory in float16.

    python models/backbone/save.py

Writes models/backbone/checkpoint, with the masked-language head, so that training can continue. The
saved configuration has BERT's usual dropout of .1, which BERT-flow's released recipe needs.
Pre-training itself used no dropout, because one pass over part of a corpus cannot overfit.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
CARD = "---\nlicense: apache-2.0\n---\n\nA small masked-language model; its card is ../README.md.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "work/tokenizer.json")
    parser.add_argument("--out", type=Path, default=HERE / "checkpoint")
    args = parser.parse_args()

    sizes = json.loads((HERE / "config.json").read_text())
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = BertForMaskedLM(BertConfig(**(sizes | dropout)))
    state = torch.load(args.work / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    shutil.rmtree(args.out, ignore_errors=True)
    model.half().save_pretrained(args.out)
    special = {
        name: f"[{name.split('_')[0].upper()}]"
        for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    }
    PreTrainedTokenizerFast(
        tokenizer_file=str(args.tokenizer),
        model_max_length=sizes["max_position_embeddings"],
        **special,
    ).save_pretrained(args.out)
    # Transformers 5 writes a class name that transformers 4 does not have.
    file = args.out / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    (args.out / "README.md").write_text(CARD)
    print(f"step {state['step']}, {state['tokens']:,} tokens")


if __name__ == "__main__":
    main()
