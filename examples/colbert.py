"""A ColBERT model from paragraphs alone: token vectors by which a sentence finds its paragraph.

    python examples/colbert.py --model models/backbone/checkpoint --corpus paragraphs.txt \\
        --retrieval retrieval -o my-colbert

ColBERT (Khattab and Zaharia 2020) projects each token of a text to a short vector, and adds up each
query token's largest cosine with a token of the document (MaxSim). Queries are filled up to 32
tokens with [MASK], and punctuation has no vectors in documents. The rows are those of splade.py: a
sentence, its paragraph, and another that is among the best for its words by BM25. The model learns
to give the paragraph the highest score of the batch. No labels of people are used.

The token vectors of a masked language model have a large part in common, so that all cosines are
high. So the projection begins as a whitening of them, without its shift, and is trained from there.

Writes a directory with `model` (sentence-transformers), `bundle` (flowvec) and `report.json`, and
measures the retrieval sets with `mini`, BM25 and hybrid search, each with and without the new model
as a reranker.
"""

from __future__ import annotations

import string
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer
from sentence_transformers import (
    MultiVectorEncoder,
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
)
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.losses import (
    MultiVectorMultipleNegativesRankingLoss,
)
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import set_seed

import flowvec
import recipe
import retrieval_recipe
from flowvec.errors import InputValueError
from flowvec_bench.quality.beir import read_retrieval
from flowvec_bench.quality.retrieval import RetrievalScore, score_retrieval
from flowvec_export import export
from paragraph_lessons import make_triplets, read_paragraphs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# Longer queries are not cut, since a sentence may have more tokens.
EXPANSION = {"strategy": "min", "attend": False, "length": 32}
# Paragraphs on whose tokens the projection is whitened, and its eps in mean eigenvalues.
SAMPLE = 256
EPS = 0.1


def load(model: str, dim: int, max_length: int) -> MultiVectorEncoder:
    """A ColBERT model without dropout, in float32, with a projection that is not trained yet.

    Raises:
        InputValueError: the encoder is narrower than `dim`, or takes fewer tokens.
    """
    transformer = Transformer(
        model, query_expansion=EXPANSION, model_kwargs={"dtype": torch.float32}
    )
    width, limit = transformer.get_embedding_dimension(), transformer.max_seq_length
    if dim > width:
        raise InputValueError(f"--dim is {dim}, but the vectors of {model} have {width} numbers")
    if limit is not None and max_length > limit:
        raise InputValueError(f"max_length is {max_length}, but {model} takes {limit} tokens")
    dense = Dense(
        width, dim, bias=False, activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )  # fmt: skip
    encoder = MultiVectorEncoder(
        modules=[
            transformer,
            dense,
            MultiVectorMask(skiplist_words=list(string.punctuation)),
            Normalize(module_input_name="token_embeddings"),
        ],
        device="cpu",
    )
    retrieval_recipe.without_dropout(encoder)
    return encoder


@torch.no_grad()
def whiten(encoder: MultiVectorEncoder, texts: list[str]) -> None:
    """Set the projection to a soft whitening of the texts' tokens on their main directions."""
    parts = []
    for start in range(0, len(texts), 32):
        features = encoder.preprocess(texts[start : start + 32])
        vectors = encoder[0](features)["token_embeddings"]
        parts.append(vectors[features["attention_mask"] == 1])
    tokens = torch.cat(parts).double()
    values, directions = torch.linalg.eigh(tokens.T @ tokens / len(tokens))
    linear = encoder[1].linear
    values, directions = values[-len(linear.weight) :], directions[:, -len(linear.weight) :]
    # The common part is far larger than the mean, so the median says what is small.
    scale = (values + EPS * values.median()).rsqrt()
    linear.weight.copy_((directions * scale).T)


def measured(bundle: Path, folder: Path, rerank_from: int) -> list[RetrievalScore]:
    """Figures of every retrieval set in a folder, with and without the reranker."""
    with (
        flowvec.MultiVectorEncoder.load(bundle) as model,
        flowvec.Encoder.load("mini") as encoder,
    ):
        return [
            score
            for dataset in read_retrieval(folder)
            for score in score_retrieval(
                encoder, dataset, hybrid=True, rerankers=[model], rerank_from=rerank_from
            )
        ]


@app.command()
def main(
    model: recipe.Model,
    corpus: retrieval_recipe.Corpus,
    out: recipe.Out,
    retrieval: retrieval_recipe.Retrieval = None,
    count: retrieval_recipe.Paragraphs = 3_200,
    taken_out: retrieval_recipe.TakenOut = 0.5,
    dim: Annotated[int, typer.Option(min=1, help="Numbers of a token's vector.")] = 128,
    epochs: recipe.Epochs = 1,
    steps: recipe.Steps = None,
    batch_size: recipe.BatchSize = 16,
    learning_rate: recipe.LearningRate = 1e-4,
    warmup: recipe.Warmup = 0.1,
    max_length: recipe.MaxLength = 64,
    rerank_from: retrieval_recipe.RerankFrom = 20,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train a ColBERT model on paragraphs, and export it as a multi-vector encoder."""
    recipe.check_out(out)
    set_seed(seed)
    begun = perf_counter()
    found = read_paragraphs(corpus, 0, count)
    data = make_triplets(found, taken_out, seed)
    encoder = load(model, dim, max_length)
    limit, encoder.max_seq_length = encoder.max_seq_length, max_length
    whiten(encoder, data["positive"][:SAMPLE])
    settings = retrieval_recipe.Settings(batch_size, learning_rate, warmup, bf16, seed)
    steps = steps or max(1, round(-(-len(data) // batch_size) * epochs))
    losses = retrieval_recipe.train(
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
        steps,
        settings,
        model=encoder,
        train_dataset=data,
        loss=MultiVectorMultipleNegativesRankingLoss(encoder),
    )
    seconds = round(perf_counter() - begun, 1)
    typer.echo(f"{steps} steps in {seconds:.0f} s: {losses}", err=True)
    encoder.max_seq_length = limit
    encoder.save_pretrained(str(out / "model"), create_model_card=False)
    bundle = export(out / "model", out / "bundle", name=out.name)
    retrieval_recipe.write_report(
        out,
        measured(bundle.path, retrieval, rerank_from) if retrieval is not None else [],
        settings={
            "model": Path(model).name, "paragraphs": len(found), "taken_out": taken_out,
            "dim": dim, "steps": steps, "max_length": max_length, "rerank_from": rerank_from,
            **asdict(settings),
        },
        seconds=seconds,
        losses=losses,
        parity=bundle.manifest.parity,
    )  # fmt: skip


if __name__ == "__main__":
    recipe.run_app(app)
