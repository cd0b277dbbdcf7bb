"""BERT-flow's released recipe, on a random BERT: its vectors and its training."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from flowvec.errors import InputValueError
from flowvec_export.assembly.parity import Parity
from flowvec_export.fitting.flow import AdamWithoutCorrection
from flowvec_export.fitting.paper_recipe import _Vectors, fit_like_the_paper
from flowvec_export.sources.load import read_source
from flowvec_export.transforms import PRESETS, Flow
from flowvec_export.transforms.file import save_transform
from tests.export.conftest import POSITIONS, TEXTS, WIDTH, make_checkpoint, make_texts

COUNT = 1060
FITTED = COUNT - COUNT // 20


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return make_texts(COUNT)


@pytest.fixture(scope="module")
def long_bert(tmp_path_factory) -> Path:
    """A BERT with 100 positions, more than the recipe uses."""
    folder = make_checkpoint(
        tmp_path_factory.mktemp("long") / "bert", "bert",
        max_position_embeddings=100, num_hidden_layers=3,
    )  # fmt: skip
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 100}))
    return folder


# --- the vectors that it trains on ----------------------------------------------------------------


def test_without_dropout_the_vectors_are_those_of_the_paper(long_bert) -> None:
    """(hidden_states[1] + hidden_states[-1]) / 2, its mean over all tokens of at most 64."""
    model = transformers.AutoModel.from_pretrained(long_bert, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(long_bert)
    texts = [*TEXTS, "the cat sleeps on the red mat " * 12, "dog " * 70]
    rows = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            states = model(ids, output_hidden_states=True).hidden_states
        rows.append(((states[1] + states[-1]) / 2)[0].mean(0).numpy())
    assert len(tokenizer(texts[-1])["input_ids"]) == 72  # so that 64 cuts it
    vectors = _Vectors(read_source(long_bert), "first_last_mean")
    paper_vectors = torch.cat(list(vectors.batches(texts, dropout=False))).numpy()
    assert Parity.of(paper_vectors, np.stack(rows)).max_relative_error <= 1e-5


def test_dropout_is_on_on_request_and_everything_is_restored(bert) -> None:
    source = read_source(bert)
    vectors = _Vectors(source, "first_last_mean")
    long = "the cat sleeps on the red mat " * 40
    texts = ["the cat sleeps", long]

    def draw(dropout: bool) -> torch.Tensor:
        return torch.cat(list(vectors.batches(texts, dropout)))

    noisy = [draw(True) for _ in range(2)]
    quiet = [draw(False) for _ in range(2)]
    assert (noisy[0] - noisy[1]).abs().max() > 0.05
    assert torch.equal(quiet[0], quiet[1])
    assert not noisy[0].requires_grad
    assert not source.model.training
    assert source.tokenizer.truncation is None
    assert len(source.tokenizer.encode(long).ids) > POSITIONS

    # Also if the caller stops half-way, as on an error.
    begun = vectors.batches(texts * 40, dropout=True)
    next(begun)
    assert source.model.training
    begun.close()
    assert not source.model.training
    assert source.tokenizer.truncation is None


# --- the fit --------------------------------------------------------------------------------------


def test_the_fit_is_the_released_one_and_repeats_itself(bert, texts, tmp_path) -> None:
    seen: list[int] = []
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    made = fit_like_the_paper(bert, texts, corpus="target.txt", seed=4, on_batch=seen.append)
    assert torch.equal(torch.random.get_rng_state(), before)

    flow = made.transform
    assert isinstance(flow, Flow)
    assert flow.shape == PRESETS["released"]
    assert (flow.shape.levels, flow.shape.depth, flow.shape.width) == (3, 3, 32)
    assert (flow.shape.coupling, flow.shape.permutation) == ("additive", "reversal")
    assert (flow.in_dim, flow.training) == (WIDTH, False)
    assert not any(parameter.requires_grad for parameter in flow.parameters())
    # One epoch, each text once, in batches of 32.
    assert seen == [32] * (FITTED // 32) + [FITTED % 32]

    recipe = made.recipe
    assert (recipe.method, recipe.pooling, recipe.corpus) == (
        "flow",
        "first_last_mean",
        "target.txt",
    )
    assert (recipe.rows, recipe.held_out_rows, recipe.seed) == (FITTED, COUNT - FITTED, 4)
    assert recipe.max_length == POSITIONS  # 64, or the checkpoint's own where that is less
    assert recipe.settings == {"like_the_paper": True}
    assert [epoch.epoch for epoch in made.history] == [1]
    assert recipe.source_sha256 == read_source(bert).sha256()
    # The held-out figure is that of serving: without dropout.
    held_out = torch.cat(
        list(_Vectors(read_source(bert), "first_last_mean").batches(texts[FITTED:], False))
    )
    bits = float(flow.bits_per_dim(held_out).mean())
    assert made.history[0].held_out == pytest.approx(bits, abs=1e-5)
    assert made.mean_cosine[1] < made.mean_cosine[0]

    save_transform(flow, recipe, tmp_path / "first.safetensors")
    torch.manual_seed(456)  # independent of torch's random state
    again = fit_like_the_paper(bert, texts, corpus="target.txt", seed=4)
    save_transform(again.transform, again.recipe, tmp_path / "second.safetensors")
    first, second = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert first == second


def test_dropout_is_on_while_the_flow_is_fitted_and_off_for_its_figures(
    bert, texts, monkeypatch
) -> None:
    passes: list[tuple[int, bool]] = []
    real = _Vectors.batches

    def noted(self: _Vectors, rows: list[str], dropout: bool) -> Any:
        passes.append((len(rows), dropout))
        return real(self, rows, dropout)

    monkeypatch.setattr(_Vectors, "batches", noted)
    fit_like_the_paper(bert, texts)
    assert passes == [(1000, True), (FITTED, True), (COUNT - FITTED, False)]


def test_pooling_and_seed_may_be_chosen(bert, texts) -> None:
    made = [
        fit_like_the_paper(bert, texts, pooling=pooling, seed=seed)
        for pooling, seed in (("cls", 0), ("cls", 1))
    ]
    assert [one.recipe.pooling for one in made] == ["cls", "cls"]
    first, second = (one.transform.state_dict() for one in made)
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_at_most_64_tokens_are_recorded(long_bert, texts) -> None:
    assert _Vectors(read_source(long_bert), "mean").max_length == 64
    assert fit_like_the_paper(long_bert, texts, pooling="mean").recipe.max_length == 64


@pytest.mark.parametrize("count", [0, 9, 1000, 1051])
def test_too_few_texts_are_an_error(bert, count: int) -> None:
    with pytest.raises(InputValueError, match=f"1000 .* of {count} are left"):
        fit_like_the_paper(bert, [f"text {i}" for i in range(count)])


def test_the_fewest_texts_suffice(bert) -> None:
    assert fit_like_the_paper(bert, make_texts(1052)).recipe.rows == 1000


# --- the optimizer --------------------------------------------------------------------------------


def test_the_optimizer_is_adamw_without_bias_correction() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 2, generator=generator)
    gradients = [torch.randn(3, 2, generator=generator) for _ in range(6)]
    parameter = torch.nn.Parameter(start.clone())
    unused = torch.nn.Parameter(start.clone())
    optimizer = AdamWithoutCorrection([parameter, unused], lr=1e-2)
    p, m, v = start.double(), torch.zeros(3, 2).double(), torch.zeros(3, 2).double()
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        g = gradient.double()
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        update = m / (v.sqrt() + 1e-6) + 0.01 * p
        p = p - 1e-2 * update
        torch.testing.assert_close(parameter.detach().double(), p, atol=1e-6, rtol=1e-5)
        assert torch.equal(parameter.grad, gradient)
    assert torch.equal(unused, start)


def test_its_first_step_is_longer_than_with_the_correction() -> None:
    """m / sqrt(v) begins at 0.1 g / sqrt(0.001 g^2), the root of ten; corrected it begins at 1."""
    steps = []
    for kind in (AdamWithoutCorrection, torch.optim.AdamW):
        parameter = torch.nn.Parameter(torch.zeros(4))
        parameter.grad = torch.tensor([1.0, -2.0, 30.0, 0.5])
        kind([parameter], lr=1e-3, eps=1e-12, weight_decay=0.0).step()
        steps.append(parameter.detach())
    torch.testing.assert_close(steps[1].abs(), torch.full((4,), 1e-3))
    torch.testing.assert_close(steps[0], steps[1] * 10**0.5)


# --- docs/reproduce_bert_flow.md ------------------------------------------------------------------

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reproduce_bert_flow.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.process
def test_the_document_runs_in_small(flowvec, bert, texts, tmp_path) -> None:
    folder = tmp_path / "sts" / "STSB"
    folder.mkdir(parents=True)
    scores = np.random.default_rng(0).uniform(0, 5, 530).round(1)
    pairs = list(zip(scores, texts[:530], texts[530:], strict=True))
    for name, rows in (("dev", pairs[:200]), ("test", pairs[200:])):
        lines = [f"{score}\t{left}\t{right}" for score, left, right in rows]
        text = "\n".join(["score\tsentence1\tsentence2", *lines, ""])
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")

    shell, *commands = BLOCKS[0].splitlines()
    subprocess.run(["sh", "-c", shell], cwd=tmp_path, check=True)
    sentences = (tmp_path / "stsb.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(sentences) == sorted(texts)

    shown = []
    for command in commands:
        words = [str(bert) if w == "bert-base-uncased" else w for w in shlex.split(command)[1:]]
        done = flowvec(*words, "--json")
        assert done.returncode == 0, done.stderr
        shown.append(json.loads(done.stdout))
    fitted, exported, scored = shown
    recipe = fitted["recipe"]
    assert recipe["settings"] == {"like_the_paper": True}
    assert (recipe["rows"], recipe["held_out_rows"]) == (FITTED, COUNT - FITTED)
    assert exported["pooling"] == "first_last_mean"
    assert exported["transform"] == [f"flow({WIDTH}, 3x3, width 32, additive)"]
    assert exported["normalised"]
    (task,) = scored["tasks"]
    assert task["pairs"] == {"dev": 200, "test": 330}
    weighted = (200 * task["subsets"]["dev"] + 330 * task["subsets"]["test"]) / 530
    assert task["wmean"] == pytest.approx(weighted)
