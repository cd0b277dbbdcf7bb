"""Each recipe, at toy size, ends in a bundle that is better than what it began with.

The toy language has concepts with two words each, one of them rare, and a sentence names three
concepts in one of several frames. Two sentences are as alike as the share of concepts that they
have in common, by whatever word: a model that has not been trained for it goes by the frame.
"""

from __future__ import annotations

import inspect
import json
import random
import re
import shlex
import shutil
import sys
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("datasets", reason="needs the extra [train]")
pytest.importorskip("accelerate", reason="needs the extra [train]")

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from typer.main import get_command

from flowvec import Bundle, Encoder
from flowvec.errors import InputValueError
from flowvec_export import load_transform
from flowvec_export.assembly.parity import Parity

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

encoders = import_module("encoders")
recipe = import_module("recipe")
training_data = import_module("training_data")

CONCEPTS = [
    "river lantern", "butter engine", "horse minister", "music harbour", "doctor window",
    "stone market", "letter forest", "bread tower", "bridge painter", "island soldier",
]  # fmt: skip
FRAMES = [
    "the {} and the {} were seen near the {}",
    "it was said that a {} , a {} or a {} would come",
    "{} {} {}",
    "why is there no {} with this {} , not even a {} ?",
    "two years later he found the {} , then another {} and his own {}",
]


class Toy:
    """Sentences of the toy language, drawn with a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def concepts(self) -> list[int]:
        return self.draw.sample(range(len(CONCEPTS)), 3)

    def say(self, concepts: list[int]) -> str:
        words = [self.draw.choices(CONCEPTS[c].split(), (3, 1))[0] for c in concepts]
        self.draw.shuffle(words)
        return self.draw.choice(FRAMES).format(*words)

    def sharing(self, concepts: list[int], count: int) -> list[int]:
        others = [c for c in range(len(CONCEPTS)) if c not in concepts]
        return self.draw.sample(concepts, count) + self.draw.sample(others, 3 - count)

    def pairs(self, rows: int) -> list[tuple[str, str, int]]:
        """Two sentences and how many concepts they share."""
        lines = []
        for row in range(rows):
            concepts = self.concepts()
            lines.append((self.say(concepts), self.say(self.sharing(concepts, row % 4)), row % 4))
        return lines


def write_tsv(path: Path, header: str, rows: list[tuple[object, ...]]) -> Path:
    lines = ["\t".join(header.split()), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the recipes read, and the backbone cut to its first layer."""
    folder = tmp_path_factory.mktemp("toy")
    draw = Toy(1)
    pairs = draw.pairs(960)
    header = "score sentence1 sentence2"
    write_tsv(folder / "scored.tsv", header, [(5 * n / 3, a, b) for a, b, n in pairs])
    classes = [(a, b, n // 3) for a, b, n in pairs if n in (0, 3)]
    write_tsv(folder / "classes.tsv", "sentence1 sentence2 label", classes)
    triplets = []
    for _ in range(960):
        concepts = draw.concepts()
        near, far = draw.sharing(concepts, 3), draw.sharing(concepts, 1)
        triplets.append((draw.say(concepts), draw.say(near), draw.say(far)))
    write_tsv(folder / "triplets.tsv", "anchor positive negative", triplets)
    texts = [text for a, b, _ in draw.pairs(1500) for text in (a, b)]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    (folder / "sts").mkdir()
    held_out = [(5 * n / 3, a, b) for a, b, n in Toy(2).pairs(600)]
    write_tsv(folder / "sts" / "test.tsv", header, held_out)
    cut_backbone(folder / "encoder")
    return folder


def cut_backbone(folder: Path) -> None:
    shutil.copytree(ROOT / "models/backbone/checkpoint", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    weights = load_file(folder / "model.safetensors")
    kept = {k: w for k, w in weights.items() if ".layer.1." not in k and ".layer.2." not in k}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def run(name: str, *arguments: object) -> None:
    """A recipe's command line in this process, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        import_module(name).app([str(a) for a in arguments], standalone_mode=False)
    finally:
        torch.set_num_threads(threads)


# Enough to learn the toy; the data, and what is fixed for all.
RECIPES = {
    "sbert_classification": ["classes.tsv", "--steps", 45, "--learning-rate", 2e-3,
                             "--batch-size", 32],
    "sbert_regression": ["scored.tsv", "--steps", 30, "--learning-rate", 1e-3],
    "sbert_triplet": ["triplets.tsv", "--steps", 25, "--learning-rate", 1e-3],
    "simcse_unsupervised": ["texts.txt", "--steps", 15, "--learning-rate", 1e-3,
                            "--batch-size", 32, "--pooling", "mean"],
    "simcse_supervised": ["triplets.tsv", "--steps", 25, "--learning-rate", 1e-3,
                          "--batch-size", 32, "--pooling", "mean"],
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _what_all_begin_with_is_exported_once():
    """An export takes seconds, and the five recipes score the same model before they train."""
    known: dict[str, Any] = {}

    def score_once(source: Path, out: Path, tasks: Any, **options: Any) -> Any:
        if options != {"calibration": ()}:
            return real(source, out, tasks, **options)
        digest = sha256((source / "model.safetensors").read_bytes()).hexdigest()
        if digest not in known:
            known[digest] = real(source, out, tasks, **options)
        return known[digest]

    real = recipe.score_bundle
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "score_bundle", score_once)
        yield


@pytest.fixture(scope="module")
def trained(toy: Path):
    """The output directory of a recipe, run once."""

    def get(name: str) -> Path:
        out = toy / name
        if not out.exists():
            data, *options = RECIPES[name]
            common = ["--model", toy / "encoder", "--sts", toy / "sts", "-o", out]
            run(name, "--train", toy / data, *common, *options)
        return out

    return get


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_ends_in_a_better_bundle(trained, name: str) -> None:
    report = json.loads((trained(name) / "report.json").read_text())
    assert report["after"][0]["all"] >= report["before"][0]["all"] + 15


@pytest.mark.parametrize("name", RECIPES)
def test_the_bundle_gives_the_vectors_of_the_model(trained, name: str) -> None:
    model = SentenceTransformer(str(trained(name) / "model"), device="cpu")
    texts = ["", "the river and the stone were seen", *(a for a, _, _ in Toy(3).pairs(20))]
    with Encoder.load(trained(name) / "bundle", provider="cpu", compute="float32") as encoder:
        # The limit of tokens while training is not that of the model.
        assert encoder.max_length == 128
        parity = Parity.of(encoder.encode(texts), model.encode(texts, show_progress_bar=False))
    assert parity.max_relative_error <= 1e-4


@pytest.mark.parametrize("name", RECIPES)
def test_the_head_stays_where_the_paper_keeps_it(trained, name: str) -> None:
    steps = Bundle.load(trained(name) / "bundle").manifest.transform
    assert steps == (("dense(256->256, tanh)",) if name == "simcse_supervised" else ())


def test_simcse_trains_through_the_head_that_it_takes_off(toy: Path) -> None:
    model = encoders.load_model(str(toy / "encoder"), "cls")
    headed = encoders.with_head(model)
    assert [type(m).__name__ for m in headed] == ["Transformer", "Pooling", "Dense"]
    text = ["the river and the stone"]
    plain, through = (m.encode(text, show_progress_bar=False) for m in (model, headed))
    head = {name: p.detach().numpy() for name, p in headed[2].named_parameters()}
    expected = np.tanh(plain @ head["linear.weight"].T + head["linear.bias"])
    np.testing.assert_allclose(through, expected, atol=1e-6)


def test_dropout_is_what_the_two_passes_differ_by(toy: Path) -> None:
    model = encoders.load_model(str(toy / "encoder"), "cls")
    encoders.set_dropout(model, 0.25)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    assert layers
    assert {m.p for m in layers} == {0.25}
    with pytest.raises(InputValueError, match="dropout"):
        encoders.set_dropout(model, 0.0)


# Sentence-BERT, section 3.1; SimCSE's code for BERT-base.
DEFAULTS = {
    "sbert_classification": {"batch_size": 16, "learning_rate": 2e-5, "epochs": 1, "warmup": 0.1},
    "sbert_regression": {"batch_size": 16, "learning_rate": 2e-5, "warmup": 0.1},
    "sbert_triplet": {"batch_size": 16, "learning_rate": 2e-5, "warmup": 0.1, "margin": 1},
    "simcse_unsupervised": {
        "batch_size": 64, "learning_rate": 3e-5, "epochs": 1, "warmup": 0, "max_length": 32,
        "pooling": "cls", "temperature": 0.05, "dropout": 0.1,
    },
    "simcse_supervised": {
        "batch_size": 512, "learning_rate": 5e-5, "epochs": 3, "warmup": 0, "max_length": 32,
        "pooling": "cls", "temperature": 0.05,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_are_the_papers(name: str) -> None:
    parameters = inspect.signature(import_module(name).main).parameters
    assert {key: parameters[key].default for key in DEFAULTS[name]} == DEFAULTS[name]


def test_a_flow_continues_top(trained, toy: Path) -> None:
    model, out = trained("sbert_regression") / "model", toy / "with-flow"
    run("add_flow", "--model", model, "--sts", toy / "sts", "-o", out, "--epochs", 1)
    report = json.loads((out / "report.json").read_text())
    after_training = json.loads((trained("sbert_regression") / "report.json").read_text())["after"]
    assert report["before"][0]["all"] == pytest.approx(after_training[0]["all"], abs=0.01)
    assert report["after"] != report["before"]
    assert report["settings"]["corpus"] == "target"
    (step,) = Bundle.load(out / "bundle").manifest.transform
    assert step.startswith("flow")
    assert load_transform(out / "flow.safetensors")[1].source == "model"


def test_pairs_are_derived_from_scores(toy: Path) -> None:
    run("derive_pairs", "--scored", toy / "scored.tsv", "-o", toy / "derived")
    text, whole = training_data.text, training_data.class_number
    scored = training_data.read_columns(
        toy / "scored.tsv", {"sentence1": text, "sentence2": text, "score": training_data.number}
    )
    classes = training_data.read_columns(toy / "derived/classes.tsv", {"label": whole})
    assert classes["label"] == [0 if s < 2 else 1 if s < 4 else 2 for s in scored["score"]]
    names = ("anchor", "positive", "negative")
    triplets = training_data.read_columns(toy / "derived/triplets.tsv", dict.fromkeys(names, text))
    pairs = set(zip(scored["sentence1"], scored["sentence2"], strict=True))
    of = dict(zip(zip(scored["sentence1"], scored["sentence2"], strict=True), scored["score"],
                  strict=True))  # fmt: skip
    alike = list(zip(triplets["anchor"], triplets["positive"], strict=True))
    assert set(alike) <= pairs
    assert min(of[pair] for pair in alike) >= 4
    assert all(n not in pair for n, pair in zip(triplets["negative"], alike, strict=True))


def test_jsonl_is_read_as_tsv_is(tmp_path: Path) -> None:
    readers = {"sentence1": training_data.text, "score": training_data.number}
    tsv, jsonl = tmp_path / "a.tsv", tmp_path / "a.jsonl"
    tsv.write_text("score\tother\tsentence1\r\n2.5\t\ta b\r\n5\tx\tc\r\n")
    jsonl.write_text('{"sentence1": "a b", "score": 2.5, "other": null}\n\n'
                     '{"sentence1": "c", "score": "5"}\n')  # fmt: skip
    columns = training_data.read_columns(tsv, readers)
    assert columns == training_data.read_columns(jsonl, readers)
    assert columns == {"sentence1": ["a b", "c"], "score": [2.5, 5.0]}
    assert list(columns) == list(readers)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sbert_classification", "sentence1\tsentence2\na\tb\n", "line 2 has no label"),
        (
            "sbert_classification",
            "sentence1\tsentence2\tlabel\na\tb\tyes\n",
            "'yes' is not a number",
        ),
        ("sbert_classification", "sentence1\tsentence2\tlabel\na\tb\t1.5\n", "not a whole number"),
        ("sbert_classification", "sentence1\tsentence2\tlabel\na\tb\t-1\n", "not a whole number"),
        ("sbert_classification", "sentence1\tsentence2\tlabel\na\tb\t0\nc\td\t2\n", "0, 1 and so"),
        ("sbert_regression", "score\tsentence1\tsentence2\n", "has no rows"),
        ("sbert_regression", "", "has no rows"),
        ("sbert_regression", "score\tsentence1\tsentence2\n7\ta\tb\n", "not from 0 to 5"),
        ("sbert_regression", "score\tsentence1\tsentence2\nnan\ta\tb\n", "'nan' is not a number"),
        ("sbert_regression", "score\tsentence1\tsentence2\n1\ta\n", "line 2 has 2 columns"),
        ("sbert_triplet", "anchor\tpositive\tnegative\na\tb\t \n", "' ' is not a text"),
        ("simcse_supervised", "anchor\tpositive\na\tb\n", "has no negative"),
        ("simcse_unsupervised", "\n", "there is no text"),
    ],
)
def test_wrong_data_is_one_line(toy, tmp_path, monkeypatch, capsys, name, text, message) -> None:
    suffix = "txt" if name == "simcse_unsupervised" else "tsv"
    data = tmp_path / f"data.{suffix}"
    data.write_text(text)
    line = refused(monkeypatch, capsys, name, data, toy / "encoder", toy / "sts", tmp_path / "out")
    assert message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", ["output", "model", "sts", "max_length"])
def test_wrong_places_are_one_line(toy, tmp_path, monkeypatch, capsys, wrong: str) -> None:
    model, sts, out = toy / "encoder", toy / "sts", tmp_path / "out"
    more: list[object] = []
    if wrong == "output":
        out.mkdir()
    elif wrong == "model":
        model = tmp_path / "nothing"
    elif wrong == "sts":
        sts = tmp_path / "nothing"
    else:
        more = ["--max-length", 1000]
    line = refused(
        monkeypatch, capsys, "sbert_regression", toy / "scored.tsv", model, sts, out, *more
    )
    shown = {"output": "out exists", "model": "is not a directory", "sts": "is not a directory",
             "max_length": "takes 128 tokens"}  # fmt: skip
    assert shown[wrong] in line


SCRIPTS = sorted(
    path for path in (ROOT / "examples").glob("*.py") if "run_app(app)" in path.read_text()
)


@pytest.mark.parametrize(
    "page", [ROOT / "examples/README.md", *SCRIPTS], ids=lambda page: page.name
)
def test_the_commands_that_are_shown_are_such_as_the_scripts_take(page: Path) -> None:
    text = re.sub(r"\\+\n", " ", page.read_text(encoding="utf-8"))
    shown = re.findall(r"^ *python examples/(\w+)\.py (.*)$", text, re.MULTILINE)
    assert shown
    for name, arguments in shown:
        command, words = get_command(import_module(name).app), shlex.split(arguments)
        if name == "measure":
            command = command.get_command(None, words.pop(0))
        command.make_context(name, words)


def refused(monkeypatch, capsys, name, data, model, sts, out, *more: object) -> str:
    """The one line that a recipe leaves on stderr, with exit code 2."""
    words = [name, "--train", data, "--model", model, "--sts", sts, "-o", out, *more]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    with pytest.raises(SystemExit) as stop:
        recipe.run_app(import_module(name).app)
    shown = capsys.readouterr()
    assert (stop.value.code, shown.out) == (2, "")
    assert shown.err.count("\n") == 1, shown.err
    return shown.err
