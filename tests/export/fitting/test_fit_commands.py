"""`flowvec fit`: what it prints and writes, and one line for a mistake.

In this process, since torch takes seconds to import; one test runs it as a program of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowvec_export.transforms.file import load_transform
from tests.export.conftest import WIDTH, make_texts
from tests.waiting import wait_until

Run = Callable[..., tuple[int, str, str]]
COUNT = 1100


@pytest.fixture
def run(tmp_path: Path, monkeypatch, flowvec) -> Run:
    """Exit code, standard output and standard error of `flowvec`, called in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        done = flowvec(*arguments)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(make_texts(COUNT)) + "\n", encoding="utf-8")
    return path


FLOW = ("--levels", 2, "--depth", 2, "--width", 16, "--epochs", 2, "--batch-size", 128)


@pytest.mark.exports
def test_a_flow_is_fitted_drawn_and_exported(run: Run, checkpoint, corpus, tmp_path) -> None:
    bert = checkpoint("bert")
    common = ("fit", "flow", "--model", bert, "--corpus", "words.txt", *FLOW, "--seed", 3)
    code, out, err = run(*common, "-o", "a.safetensors", "--plot", "a.svg", "--quiet")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    described = f"flow({WIDTH}, 2x2, width 16, additive)"
    assert lines[0] == f"a.safetensors: {described} after mean pooling of bert"
    assert lines[1] == f"fitted on {COUNT - COUNT // 20} texts of words.txt, seed 3"
    assert lines[2].startswith("held out: ")
    assert "bits/dim after epoch " in lines[2]
    assert lines[3].startswith("mean cosine of held-out pairs: 0.")
    assert len(lines) == 4  # no warning: a plain encoder was not trained for similarity

    code, out, err = run(*common, "-o", "b.safetensors", "--plot", "b.svg", "--json", "--quiet")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert (shown["out"], shown["transform"]) == ("b.safetensors", described)
    assert shown["recipe"]["settings"]["shape"]["width"] == 16
    assert shown["recipe"]["settings"]["shape"]["seed"] == 3
    assert shown["recipe"]["settings"]["training"]["batch_size"] == 128
    assert len(shown["recipe"]["results"]["bits_per_dim"]) == 3

    # Equal fits give equal files, and equal drawings.
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()
    drawing = Path("a.svg").read_text(encoding="utf-8")
    assert drawing == Path("b.svg").read_text(encoding="utf-8")
    assert drawing.startswith("<?xml")
    for text in ("flow on mean vectors of bert", "bits per dimension", "held out", "kept: "):
        assert text in drawing
    assert str(tmp_path) not in drawing
    assert load_transform("a.safetensors")[0].describe() == described

    code, out, _ = run("export", bert, "--transform", "a.safetensors", "-o", "bundle")
    assert code == 0
    assert f"mean -> {described}" in out
    assert {path.name for path in tmp_path.iterdir()} == {
        "words.txt", "a.safetensors", "a.svg", "b.safetensors", "b.svg", "bundle"
    }  # fmt: skip


@pytest.mark.exports
def test_options_reach_the_fit(run: Run, checkpoint, corpus) -> None:
    Path("w.safetensors").write_text("an older file")
    code, out, _ = run(
        "fit", "pca+beta-gamma", "--model", checkpoint("bert"), "--corpus", corpus,
        "-o", "w.safetensors", "--overwrite", "--pooling", "cls+mean", "--max-length", 12,
        "--k", 5, "--beta", 0.5, "--gamma", 0.25, "--rows", 200, "--seed", 20_261_121, "--json",
    )  # fmt: skip
    assert code == 0
    recipe = json.loads(out)["recipe"]
    assert (recipe["pooling"], recipe["max_length"], recipe["seed"]) == ("cls+mean", 12, 20_261_121)
    assert (recipe["rows"], recipe["held_out_rows"]) == (190, 10)
    assert recipe["settings"] == {"k": 5, "beta": 0.5, "gamma": 0.25}
    transform, _ = load_transform("w.safetensors")
    assert transform.describe() == (
        f"rotation({2 * WIDTH}->5) -> beta_gamma_whitening(5->5, beta=0.5, gamma=0.25)"
    )


def test_the_fit_command_reads_stdin(flowvec, checkpoint, tmp_path) -> None:
    text = "\n".join(make_texts(60))
    done = flowvec(
        "fit", "soft-zca", "--eps", 0.2, "--model", checkpoint("bert"), "--corpus", "-",
        "-o", "z.safetensors", "--quiet", stdin=text,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "fitted on 50 texts of standard input, seed 0" in done.stdout
    assert load_transform(tmp_path / "z.safetensors")[0].describe() == f"soft_zca({WIDTH}, eps=0.2)"


def test_a_model_that_was_trained_to_be_compared_is_named(
    run: Run, checkpoint, corpus, tmp_path_factory
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = tmp_path_factory.mktemp("st") / "trained"
    modules = [Transformer(str(checkpoint("bert"))), Pooling(WIDTH, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    common = ("fit", "standardise", "--model", folder, "--corpus", corpus, "--rows", 40)
    code, out, _ = run(*common, "-o", "a.safetensors")
    assert code == 0
    assert "A transform usually makes such a model worse" in out.splitlines()[-1]
    # Its encoder was trained for similarity too.
    code, out, _ = run(*common, "-o", "b.safetensors", "--encoder-only")
    assert code == 0
    assert "A transform usually makes such a model worse" in out.splitlines()[-1]
    code, out, _ = run(*common, "--model", checkpoint("bert"), "-o", "c.safetensors")
    assert code == 0
    assert "hurts" not in out


# The command, which does not go on when the bundle that computes the vectors is there.
HELD = """
import time
from pathlib import Path
from flowvec import Encoder
def hold(*_, **__):
    Path("held").touch()
    time.sleep(3600)
Encoder.encode = hold
from flowvec.cli.main import main
main()
"""


@pytest.mark.process
def test_a_fit_that_is_stopped_leaves_nothing(checkpoint, corpus, tmp_path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [
        "fit",
        "flow",
        "--model",
        str(checkpoint("bert")),
        "--corpus",
        str(corpus),
        "--quiet",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", HELD, *command, "-o", "t.safetensors"],
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(scratch)}, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        wait_until(lambda: (tmp_path / "held").exists() or process.poll() is not None)
        assert list(scratch.glob("flowvec-*"))
        process.terminate()
        _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM
    assert (err, list(scratch.iterdir())) == (b"", [])
    assert not (tmp_path / "t.safetensors").exists()


FIT = ["--model", "BERT", "--corpus", "words.txt"]
OUT = ["-o", "t.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["dense", *FIT, *OUT], "method 'dense' is unknown"),
        (["rotation", *FIT, *OUT], "rotation+flow"),
        (["flow", *FIT, "-o", "t.bin"], "a transform is a .safetensors file, not t.bin"),
        (["flow", *FIT, "-o", "no/t.safetensors"], "there is no directory"),
        (["flow", *FIT, "-o", "old.safetensors"], "old.safetensors exists: name another file"),
        (["flow", *FIT, "-o", "folder.safetensors", "--overwrite"], "is a directory"),
        (["flow", *FIT, *OUT, "--plot", "p.gif"], "a plot is one of .svg, .png, .pdf"),
        (["flow", *FIT, *OUT, "--plot", "no/p.svg"], "there is no directory"),
        (["flow", *FIT, *OUT, "--plot", "old.svg"], "old.svg exists: name another file"),
        (["flow", *FIT, "-o", "BERT/t.safetensors"], "is in the input"),
        (["whitening", *FIT, *OUT, "--plot", "p.svg"], "only a flow has a learning curve"),
        (["flow", *FIT, *OUT, "--preset", "narrow"], "preset must be one of released, paper, wide"),
        (["flow", *FIT, *OUT, "--width", "0"], "width must be at least 1"),
        (["flow", *FIT, *OUT, "--levels", "-1"], "levels must be at least 1"),
        (["flow", *FIT, *OUT, "--levels", "9"], "48 dimensions are too few for 9 levels"),
        (["flow", *FIT, *OUT, "--coupling", "other"], "coupling must be one of additive, affine"),
        (["flow", *FIT, *OUT, "--epochs", "0"], "epochs must be at least 1"),
        (["flow", *FIT, *OUT, "--learning-rate", "nan"], "learning_rate must be a number"),
        (["flow", *FIT, *OUT, "--rows", "300"], "flow needs at least 1000 different texts"),
        (["whitening", *FIT, *OUT, "--rows", "19"], "at least 10 different texts"),
        (["flow", *FIT, *OUT, "--k", "4"], "--k applies only to whitening"),
        (["whitening", *FIT, *OUT, "--epochs", "5"], "--epochs applies only to flow"),
        (["whitening", *FIT, *OUT, "--k", "0"], "k must be at least 1"),
        (["soft-zca", *FIT, *OUT, "--eps", "-1"], "eps must not be negative"),
        (["whitening", *FIT, *OUT, "--rows", "60", "--k", "48"], "directions that are not null"),
        (["whitening", *FIT, *OUT, "--k", "49"], "k is 49, but there are 48 dimensions"),
        (["all-but-the-top", *FIT, *OUT, "--top", "48"], "top is 48, but there are 48"),
        (["beta-gamma", *FIT, *OUT, "--rows", "60", "--beta", "2"], "beta must be from 0 to 1"),
        (["whitening", *FIT, *OUT, "--pooling", "sum"], "pooling 'sum' is unknown"),
        (["whitening", *FIT, *OUT, "--max-length", "999"], "max_length must be from"),
        (
            ["whitening", "--model", "./no", "--corpus", "words.txt", *OUT],
            "./no does not exist",
        ),
        (["whitening", "--model", "BERT", "--corpus", "no.txt", *OUT], "cannot read no.txt"),
        (["whitening", "--model", "BERT", "--corpus", "empty.txt", *OUT], "no text in empty.txt"),
        (["whitening", *FIT, *OUT, "--like-the-paper"], "fixes the method flow"),
        (["flow+whitening", *FIT, *OUT, "--like-the-paper"], "fixes the method flow"),
        (["flow", *FIT, *OUT, "--like-the-paper", "--epochs", "1"], "fixes the method flow"),
        # An option conflicts with the recipe even if it has the recipe's value.
        (["flow", *FIT, *OUT, "--like-the-paper", "--preset", "released"], "fixes the method"),
        (["flow", *FIT, *OUT, "--like-the-paper", "--max-length", "64"], "fixes the method"),
        (["flow", *FIT, *OUT, "--like-the-paper", "--rows", "500"], "at least 1000 different"),
    ],
    ids=lambda value: " ".join(value[:1] + value[5:])[:60] if isinstance(value, list) else "",
)
def test_a_wrong_argument_is_one_line_and_writes_nothing(
    run: Run, checkpoint, corpus, tmp_path, arguments, part
) -> None:
    for name in ("old.safetensors", "old.svg", "empty.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder.safetensors").mkdir()
    before = sorted(path.name for path in tmp_path.rglob("*"))
    bert = str(checkpoint("bert"))
    code, out, err = run("fit", "--quiet", *[a.replace("BERT", bert) for a in arguments])
    assert (code, out) == (2, "")
    assert part in err
    assert err.startswith("flowvec: ")
    assert len(err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "old.safetensors").read_text() == ""
