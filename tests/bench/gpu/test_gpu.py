"""The command for a GPU: its steps end, are recorded and resumed, and a stand-in says what it is.

No step is run on a GPU here: the CPU provider runs under the name of CUDA's.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("sentence_transformers", reason="needs the extra [bench]")

from flowvec_bench.gpu import runner
from flowvec_bench.gpu.__main__ import main
from flowvec_bench.gpu.report import write_report
from flowvec_bench.gpu.runner import Record, Step, run_steps
from flowvec_bench.gpu.settings import Settings, flops_per_token, sizes_of
from flowvec_bench.gpu.stand_in import SAID
from flowvec_bench.gpu.steps import STEPS
from flowvec_bench.gpu.wheels import join_pieces
from tests.waiting import wait_until

# Steps for the runner, in a module beside the package's own.
STEPS_OF_TESTS = """
import subprocess, sys, time

def works(settings, emit, word):
    emit("word", passed=True, word=word)

def fails(settings, emit):
    emit("before", figure=1.5)
    raise ValueError("it broke")

def hangs(settings, emit, file):
    emit("before", figure=2.5)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(file, "w") as pid:
        pid.write(str(child.pid))
    time.sleep(600)

def dies(settings, emit):
    import os
    emit("before", figure=3.5)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.json"
    Settings(work=str(tmp_path / "work"), tokenizer="none").save(path)
    return path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Steps of tests, which the steps' processes find in an extension of the package."""
    folder = tmp_path / "extension"
    folder.mkdir()
    (folder / "steps_of_tests.py").write_text(STEPS_OF_TESTS)
    (folder / "sitecustomize.py").write_text(
        f"import flowvec_bench.gpu as package\npackage.__path__.append({str(folder)!r})\n"
    )
    return str(folder)


def run(
    steps: Sequence[Step], settings: Path, folder: Path, module: str, **options: bool
) -> list[Record]:
    return run_steps(steps, settings, folder, 3600, search_path=(module,), **options)


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a step writes before it hangs: from then on, its time is over at once."""
    file = tmp_path / "hung"

    class Popen(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None and str(file) in list(self.args):  # type: ignore[arg-type]
                wait_until(lambda: file.exists() and file.read_text())
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait(timeout)

    names = ("STDOUT", "DEVNULL", "TimeoutExpired")
    used = {name: getattr(subprocess, name) for name in names}
    monkeypatch.setattr(runner, "subprocess", SimpleNamespace(Popen=Popen, **used))
    return file


@pytest.mark.process
def test_a_step_that_fails_hangs_or_dies_is_recorded_and_the_next_one_runs(
    tmp_path: Path, settings: Path, module: str, hung: Path
) -> None:
    steps = (
        Step("fails", "steps_of_tests:fails", 600),
        Step("hangs", "steps_of_tests:hangs", 20, (str(hung),)),
        Step("dies", "steps_of_tests:dies", 600),
        Step("after", "steps_of_tests:works", 600, ("a",), ("fails",)),
        Step("works", "steps_of_tests:works", 600, ("b",)),
    )
    failed, late, died, after, works = run(steps, settings, tmp_path / "steps", module)
    assert (failed.status, late.status, died.status) == ("failed", "timed out", "failed")
    assert "it broke" in failed.reason
    assert "20 s" in late.reason
    # What a step wrote before is kept.
    assert [r.rows[0]["figures"]["figure"] for r in (failed, late, died)] == [1.5, 2.5, 3.5]
    assert (after.status, after.reason) == ("not run", "needs fails")
    assert (works.status, works.rows[0]["figures"]) == ("done", {"word": "b"})
    # The process that the step started was stopped with it.
    wait_until(lambda: _has_ended(int(hung.read_text())))


def _has_ended(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.process
def test_an_interrupted_run_continues(tmp_path: Path, settings: Path, module: str) -> None:
    folder = tmp_path / "steps"
    first = Step("first", "steps_of_tests:works", 600, ("a",))
    fails = Step("fails", "steps_of_tests:fails", 600)
    run([first, fails], settings, folder, module)
    # Known steps are not run again: these would give other rows.
    again = [
        Step("first", "steps_of_tests:works", 600, ("changed",)),
        Step("fails", "steps_of_tests:works", 600, ("changed",)),
        Step("second", "steps_of_tests:works", 600, ("b",), ("first",)),
    ]
    records = run(again, settings, folder, module)
    assert [r.status for r in records] == ["done", "failed", "done"]
    assert records[0].rows[0]["figures"] == {"word": "a"}
    records = run(again, settings, folder, module, retry=True)
    assert [r.status for r in records] == ["done", "done", "done"]
    assert records[1].rows[0]["figures"] == {"word": "changed"}


@pytest.mark.process
def test_steps_without_time_are_run_by_the_next_call(
    tmp_path: Path, settings: Path, module: str, hung: Path
) -> None:
    step = Step("first", "steps_of_tests:works", 600, ("a",))
    folder = tmp_path / "steps"
    (record,) = run_steps([step], settings, folder, 1, search_path=(module,))
    assert (record.status, record.reason) == ("not run", "no time was left")
    (record,) = run([step], settings, folder, module)
    assert record.status == "done"
    hangs = Step("second", "steps_of_tests:hangs", 3600, (str(hung),))
    (record,) = run_steps([hangs], settings, folder, 600, search_path=(module,))
    assert record.status == "timed out"
    assert re.fullmatch(r"no time was left after \d+ s", record.reason)
    assert record.rows[0]["figures"] == {"figure": 2.5}
    (record,) = run([Step("second", "steps_of_tests:works", 600, ("a",))], settings, folder, module)
    assert record.status == "done"


def wheel(folder: Path, name: str) -> Path:
    """A wheel with one module."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "VALUE = 7\n" + "# filling\n" * 500)
        file.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n")
        file.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


@pytest.mark.process
@pytest.mark.parametrize("ending", [".{:03}", ".part-{:02}", ".part{}", "-{:02}"])
def test_pieces_of_a_wheel_are_joined_in_order(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    whole = wheel(folder, "whole")
    cut = wheel(folder, "pieces")
    content = cut.read_bytes()
    cut.unlink()
    size = -(-len(content) // 12)  # so that 10 comes after 9
    for number, at in enumerate(range(0, len(content), size)):
        piece = folder / f"{cut.name}{ending.format(number)}"
        piece.write_bytes(content[at : at + size])
    (folder / "notes.txt").write_text("not a wheel")
    found = join_pieces(folder, tmp_path / "joined")
    assert found == [tmp_path / "joined" / cut.name, whole]
    assert found[0].read_bytes() == content


def test_nothing_is_needed_before_the_wheels_are_installed(python) -> None:
    code = """
import sys
before = set(sys.modules)  # what the environment loads by itself
import flowvec_bench.gpu.__main__
needed = {name.partition(".")[0] for name in set(sys.modules) - before}
assert needed <= {*sys.stdlib_module_names, "flowvec_bench"}, needed
"""
    run = python(code)
    assert run.returncode == 0, run.stderr


@pytest.mark.process
def test_every_step_needs_earlier_steps_and_has_a_function() -> None:
    import importlib

    known: set[str] = set()
    for step in STEPS:
        assert known.issuperset(step.needs), step.name
        assert step.name not in known
        known.add(step.name)
        module, _, name = step.function.partition(":")
        assert callable(getattr(importlib.import_module(f"flowvec_bench.gpu.{module}"), name))


def test_operations_of_a_token_are_those_of_its_weights() -> None:
    # MiniLM-L6: 24 x width^2 x layers, as its inner width is four times its width.
    assert flops_per_token(sizes_of("minilm-l6", stand_in=False)) == 24 * 384**2 * 6


@pytest.mark.process
def test_the_command_runs_end_to_end_with_a_stand_in(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    content = wheel(tmp_path, "flowvec_probe").read_bytes()
    for number in range(2):
        half = content[number * 3000 : (number + 1) * 3000] if number == 0 else content[3000:]
        (wheels / f"flowvec_probe-1.0-py3-none-any.whl.{number:03}").write_bytes(half)
    out, work = tmp_path / "out", tmp_path / "work"
    only = (
        "install,machine,model-minilm,check-engines,check-out,check-nan,race-minilm-l6-sentences,"
        "run-packed,run-attention-kernels-minilm"
    )
    for name in ("nan/plain", "nan/source", "minilm-l6"):  # as a run that was interrupted
        (work / name).mkdir(parents=True)
        (work / name / "left").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command extends it
    arguments = ["--stand-in", "--out", str(out), "--work", str(work), "--wheels", str(wheels)]
    code = main([*arguments, "--only", only])
    report = json.loads((out / "report.json").read_text())
    text = (out / "report.md").read_text()
    assert code == 0, text
    assert (work / "packages" / "flowvec_probe.py").exists()
    assert report["stand_in"] == SAID
    assert SAID in text
    assert SAID in capfd.readouterr().out
    steps = {record["step"]: record for record in report["steps"]}
    assert {record["status"] for record in steps.values()} == {"done"}
    engines = {row["what"]: row["passed"] for row in steps["check-engines"]["rows"]}
    assert engines["CUDAExecutionProvider float16, against float32 on the CPU"]
    assert engines["CUDAExecutionProvider float16, in other batches"]
    assert [row["passed"] for row in steps["check-out-of-memory"]["rows"]] == [True] * 4
    kernels = steps["run-attention-kernels-minilm-l6"]["rows"]
    assert len(kernels) == 4
    assert all(row["passed"] for row in kernels)  # both forms of the mask give the same vectors
    timed = {
        r["what"] for r in steps["race-minilm-l6-sentences"]["rows"] if "round" in r["figures"]
    }
    assert "flowvec CUDA float16" in timed
    assert "sentence-transformers float16, SDPA" in timed
    assert "Target" not in text  # a stand-in reaches nothing
    # Records of a stand-in and of a GPU are never mixed.
    with pytest.raises(SystemExit):
        main([argument for argument in arguments if argument != "--stand-in"])


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_ctrl_c_says_that_the_command_continues(tmp_path: Path) -> None:
    code = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "runpy.run_module('flowvec_bench.gpu', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, "--stand-in", "--out", "out", "--work", "work"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until((tmp_path / "out" / "steps" / "install.json").exists)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=600)
    assert process.returncode == 130, told
    assert told == (
        f"stopped; the same command continues. Records and report: {tmp_path / 'out'}\n"
    )


def test_mistakes_are_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for options, message in (
        (["--only", "check,races"], "no step's name begins with 'races'; the steps are install, "),
        (["--wheels", str(tmp_path / "none")], f"{tmp_path / 'none'} is not a folder of wheels"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["--stand-in", "--out", str(out), "--work", str(tmp_path / "work"), *options])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert not (out / "steps").exists()


@pytest.mark.process
def test_without_a_gpu_the_command_says_why_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    code = main(["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")])
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    statuses = {record["step"]: record["status"] for record in report["steps"]}
    assert code == 1
    assert "stand_in" not in report
    assert statuses.pop("install") == "done"
    assert statuses.pop("machine") == "failed"
    assert set(statuses.values()) == {"not run"}
    assert "no GPU can be used: " in report["steps"][1]["reason"]
    install, machine, others, summary = capsys.readouterr().out.splitlines()
    assert install.startswith("install: done")
    assert re.match(r"machine: failed, \d+ s: no GPU can be used: ", machine)
    assert others == (
        f"{len(STEPS) - 2} steps were not run: they need machine. Mend what failed, and give "
        "--retry; --stand-in tests the steps on a machine without a GPU"
    )
    assert summary.startswith(f"1 of {len(STEPS)} steps done")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "no GPU can be used: " in text
    assert "| model-minilm-l6 | not run | 0 | needs machine |" in text


def test_a_report_says_whether_the_target_was_reached(tmp_path: Path) -> None:
    def row(what: str, **figures: float) -> dict[str, object]:
        return {"what": what, "passed": None, "note": "", "figures": figures}

    def timed(what: str, rate: float, number: int) -> dict[str, object]:
        return row(what, round=number, size=512, seconds=1.0, texts_per_second=rate,
                   tokens_per_second=rate * 30)  # fmt: skip

    rows = [row("texts", count=10, tokens=300, flops_per_token=2e9)]
    for number, (own, peer) in enumerate([(900.0, 500.0), (1000.0, 500.0), (10.0, 400.0)]):
        rows += [timed("flowvec CUDA float16", own, number), timed("a peer", peer, number)]
    records = [
        Record("machine", "done", rows=[row("matrix products", float16_tflops=100.0)]),
        Record("race-minilm-l6-sentences", "done", rows=rows),
    ]
    write_report(records, tmp_path, stand_in=False)
    text = (tmp_path / "report.md").read_text()
    assert "Target 1.5 times the best peer: reached (1.80)." in text
    assert "54.0 %" in text  # 27,000 tokens/s of 2 GFLOP in 100 TFLOP/s
    assert "STAND-IN" not in text
