"""The command line: what it writes, and one line with exit code 2 for a user's mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flowvec import Encoder

COMMANDS = [
    "bench", "demo", "doctor", "encode", "eval", "export", "fit", "index", "info", "search"
]  # fmt: skip
LINES = ["the cat sleeps", "", "a dog runs", "stocks fell"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def assert_mistake(done, *parts: str) -> None:
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert done.stdout == ""


def test_help_lists_the_commands(flowvec) -> None:
    done = flowvec("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


EVALS = ["eval isotropy", "eval lexical", "eval retrieval", "eval sts"]


@pytest.mark.parametrize("command", [*COMMANDS, *EVALS, "bench throughput"])
def test_every_command_has_help_with_an_example(flowvec, command: str) -> None:
    done = flowvec(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Example: flowvec {command}" in done.stdout


def test_the_version_is_printed(flowvec) -> None:
    import flowvec as package

    assert flowvec("--version").stdout.strip() == f"flowvec {package.__version__}"


@pytest.mark.parametrize("command", ["nonsense", "encode --nonsense", "search"])
def test_a_wrong_call_is_a_usage_error(flowvec, command: str) -> None:
    done = flowvec(*command.split())
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# --- encode ---------------------------------------------------------------------------------------


def test_encode_writes_what_the_encoder_gives(flowvec, notes, tiny: Encoder, tiny_dir) -> None:
    done = flowvec("encode", tiny_dir, notes, "-o", "out.npy", "--provider", "cpu")
    assert done.returncode == 0, done.stderr
    written = np.load(notes.parent / "out.npy")
    assert written.dtype == np.float32
    np.testing.assert_allclose(written, tiny.encode(LINES), atol=1e-5)
    assert "4 x 16 float32" in done.stdout
    assert done.stderr == ""  # no progress bar away from a terminal
    assert sorted(p.name for p in notes.parent.iterdir()) == ["notes.txt", "out.npy"]


def test_encode_reads_standard_input_and_prints_json(flowvec, tmp_path, tiny_dir) -> None:
    done = flowvec("encode", tiny_dir, "-", "-o", "out.npy", "--json", stdin="\ufeffone\ntwo\n")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["rows"], result["dim"], result["truncated"]) == (2, 16, 0)
    assert np.load(tmp_path / "out.npy").shape == (2, 16)


def test_encode_reads_fields_and_uses_prompts(flowvec, tmp_path, tiny: Encoder, tiny_dir) -> None:
    (tmp_path / "a.csv").write_text("id,body\n1,cat\n")
    options = ("--text-field", "body", "--prompt", "query", "--provider", "cpu")
    done = flowvec("encode", tiny_dir, "a.csv", "-o", "out.npy", *options)
    assert done.returncode == 0, done.stderr
    expected = tiny.encode_query(["cat"])
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


def test_encode_of_an_empty_file_is_an_empty_array(flowvec, tmp_path, tiny_dir) -> None:
    done = flowvec("encode", tiny_dir, "-", "-o", "out.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npy").shape == (0, 16)


@pytest.mark.parametrize(
    ("arguments", "stdin", "part"),
    [
        (["encode", "nowhere", "-", "-o", "o.npy"], "x", "no bundle 'nowhere'"),
        (["encode", "TINY", "nowhere.txt", "-o", "o.npy"], "", "cannot read nowhere.txt"),
        (["encode", "TINY", "-", "-o", "o.txt"], "x", ".npy"),
        (["encode", "TINY", "-", "-o", "no/o.npy"], "x", "no directory"),
        (["encode", "TINY", "-", "-o", "o.npy"], b"\xff", "not UTF-8"),
        (["encode", "TINY", "-", "-o", "o.npy", "--format", "jsonl"], "x\n", "line 1 is no JSON"),
        (["encode", "TINY", "-", "-o", "o.npy", "--provider", "tpu"], "x", "not served"),
        (["encode", "TINY", "-", "-o", "o.npy", "--compute", "int3"], "x", "int3"),
        (["encode", "TINY", "-", "-o", "o.npy", "--prompt", "none"], "x", "no prompt"),
        (["encode", "NAN", "-", "-o", "o.npy"], "nan", "NaN or infinity for item 0"),
        (["index", "c", "-"], "x", "give --model"),
        (["index", "c", "nowhere.txt", "--model", "TINY"], "", "cannot read"),
        (
            ["index", "c", "-", "--model", "TINY", "--format", "jsonl", "--id-field", "i"],
            '{"text": "x", "i": "\\ud800"}',
            "surrogate",
        ),
        (["encode", "~nosuchuser/x", "-", "-o", "o.npy"], "x", "no bundle"),
        (["encode", "TINY", "-", "-o", "."], "x", ".npy"),
        (["search", "nowhere", "query"], "", "no collection"),
        (["info", "nowhere"], "", "no bundle"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    flowvec, tmp_path, tiny_dir, nan_dir, arguments, stdin, part
) -> None:
    paths = {"TINY": str(tiny_dir), "NAN": str(nan_dir)}
    done = flowvec(*[paths.get(a, a) for a in arguments], stdin=stdin)
    assert_mistake(done, part)
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# --- index and search -----------------------------------------------------------------------------


def test_index_and_search_end_to_end(flowvec, tmp_path, tiny_dir) -> None:
    rows = [{"id": f"n{i}", "text": text} for i, text in enumerate(LINES)]
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = flowvec("index", "c", "notes.jsonl", "--model", tiny_dir, "--id-field", "id")
    assert made.returncode == 0, made.stderr
    assert "4 rows added, 4 in all" in made.stdout

    found = flowvec("search", "c", "the cat sleeps", "-k", 2, "--json")
    assert found.returncode == 0, found.stderr
    hits = json.loads(found.stdout)
    assert len(hits) == 2
    assert hits[0].keys() == {"id", "score", "text", "metadata"}

    # The same rows again replace themselves; the model is remembered.
    again = flowvec("index", "c", "notes.jsonl", "--id-field", "id", "--json")
    assert json.loads(again.stdout)["rows"] == 4
    plain = flowvec("search", "c", "stocks", "-k", 3)
    assert len(plain.stdout.splitlines()) == 3
    assert flowvec("search", "c", "stocks", "--min-score", 2).stdout == "no rows\n"

    info = json.loads(flowvec("info", "c", "--json").stdout)
    assert (info["kind"], info["rows"], info["model"]) == ("collection", 4, str(tiny_dir))


def test_index_takes_every_row_of_a_long_input(flowvec, tmp_path, tiny_dir) -> None:
    from flowvec.pipeline import WINDOW

    (tmp_path / "long.txt").write_text("the cat\n" * (2 * WINDOW + 1))
    done = flowvec("index", "c", "long.txt", "--model", tiny_dir, "--json")
    assert json.loads(done.stdout)["rows"] == 2 * WINDOW + 1


def test_numbered_rows_replace_others_only_where_asked(flowvec, tiny_dir) -> None:
    made = flowvec("index", "c", "-", "--model", tiny_dir, stdin="a\nb\n")
    assert made.returncode == 0, made.stderr
    assert_mistake(flowvec("index", "c", "-", stdin="c\n"), "holds 2 rows", "--replace")
    done = flowvec("index", "c", "-", "--replace", "--json", stdin="c\n")
    assert json.loads(done.stdout)["rows"] == 2


def test_index_refuses_another_model(flowvec, tiny_dir, nan_dir) -> None:
    assert flowvec("index", "c", "-", "--model", tiny_dir, stdin="a\n").returncode == 0
    done = flowvec("index", "c", "-", "--model", nan_dir, "--replace", stdin="b\n")
    assert_mistake(done, "another model")


# --- info, doctor, demo ---------------------------------------------------------------------------


def test_info_shows_a_bundle(flowvec, tiny_dir) -> None:
    plain = flowvec("info", tiny_dir)
    assert plain.returncode == 0, plain.stderr
    assert "dense(32->16, tanh)" in plain.stdout
    shown = json.loads(flowvec("info", "mini", "--json").stdout)
    assert (shown["kind"], shown["name"]) == ("bundle", "mini")
    assert set(shown["files"]) == {"model.onnx", "tokenizer.json", "int8_ranges.npy"}


def test_doctor_finds_this_installation_well(flowvec) -> None:
    done = flowvec("doctor")
    assert done.returncode == 0, done.stdout
    assert "no problems found" in done.stdout
    report = json.loads(flowvec("doctor", "--json").stdout)
    assert report["packages"]["onnxruntime"]
    assert "CPUExecutionProvider" in report["providers"]
    assert report["models"] == ["mini"]


def test_demo_shows_neighbours(flowvec) -> None:
    done = flowvec("demo")
    assert done.returncode == 0, done.stderr
    assert "of 20 queries find their passage" in done.stdout
    result = json.loads(flowvec("demo", "--query", "how banks lend money", "--json").stdout)
    assert len(result["results"][0]["hits"]) == 5


# --- extras ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["export", "x", "-o", "y"], "torch", "flowvec[cpu,export]"),
        (["export", "x", "-o", "y"], "onnxscript", "flowvec[cpu,export]"),
        (
            ["fit", "flow", "--model", "x", "--corpus", "y", "-o", "z"],
            "safetensors",
            "flowvec[cpu,export]",
        ),
        (["bench", "throughput", "mini"], "psutil", "flowvec[cpu,bench]"),
        (["eval", "sts", "mini", "x"], "scipy", "flowvec[cpu,bench]"),
        (["eval", "lexical", "mini", "x"], "rapidfuzz", "flowvec[cpu,bench]"),
        (["eval", "retrieval", "mini", "x"], "Stemmer", "flowvec[cpu,bench]"),
        (["eval", "isotropy", "mini", "x"], "matplotlib", "flowvec[cpu,bench]"),
        (
            ["eval", "isotropy", "mini", "x", "--source", "y"],
            "torch",
            "flowvec[cpu,export,bench]",
        ),
        (["encode", "mini", "-", "-o", "o.npy"], "onnxruntime openvino", "flowvec[cpu]"),
        (["bench", "peers", "x", "--corpus", "y"], "onnxscript", "flowvec[cpu,export,bench]"),
    ],
)
def test_a_command_without_its_extra_prints_the_pip_line(python, command, package, extra) -> None:
    code = """
import importlib.abc, sys
absent = sys.argv.pop(1).split()
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
real = __import__("importlib.util").util.find_spec
__import__("importlib.util").util.find_spec = lambda n, p=None: None if n in absent else real(n, p)
from flowvec.cli import main
main()
"""
    done = python(code, package, *command)
    assert done.returncode == 2, done.stderr
    assert f'pip install "{extra}"' in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_reader_that_goes_away_causes_no_noise(python) -> None:
    code = """
import subprocess, sys
flowvec = [sys.executable, "-c", "from flowvec.cli import main; main()"]
child = subprocess.Popen([*flowvec, "info", "mini"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
child.stdout.close()
print(child.stderr.read().decode())
sys.exit(child.wait())
"""
    done = python(code)
    assert done.returncode == 1
    assert done.stdout.strip() == ""
