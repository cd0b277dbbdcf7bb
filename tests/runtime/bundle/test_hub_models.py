"""Models of the hub by name: the real hub client against a hub on the loopback interface."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub import Hub
from tests.runtime.bundle.conftest import LOAD, Command, Load, answer_of
from tests.waiting import wait_until

pytestmark = pytest.mark.process

Start = Callable[..., subprocess.Popen[str]]

# Nothing that only an export needs can be imported.
POISONED = """
import sys
for name in ("torch", "transformers", "onnx", "onnxscript", "flowvec_export"):
    sys.modules[name] = None
"""


def changed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same model with vectors of other lengths."""
    settings = json.loads(files["config.json"]) | {"normalize": False}
    return files | {"config.json": json.dumps(settings).encode()}


def test_first_use_exports_and_later_loads_need_nothing_of_it(hub: Hub, load: Load) -> None:
    first = load("org/tiny")
    commit = hub.repositories["org/tiny"].refs["main"]
    assert first["source"] == first["handle"] == f"org/tiny@{commit}"
    assert first["name"] == "tiny"
    assert "torch" not in first["imported"]
    assert "exporting org/tiny@" in first["log"]
    assert " s into " in first["log"]

    hub.requests.clear()
    second = load("org/tiny", code=POISONED + LOAD)
    assert hub.requests == ["GET /api/models/org/tiny"]
    assert "export" not in second["log"]
    hub.requests.clear()
    offline = load("org/tiny", code=POISONED + LOAD, environment={"HF_HUB_OFFLINE": "1"})
    local = load("org/tiny", code=POISONED + LOAD, local_files_only=True)
    pinned = load(first["handle"], code=POISONED + LOAD)
    assert not hub.requests
    for later in (offline, local, pinned):
        assert later["imported"] == []
        assert later["vector"] == second["vector"] == first["vector"]


def test_the_token_is_the_hub_clients(hub: Hub, load: Load, tmp_path: Path) -> None:
    first = load("org/tiny", environment={"HF_TOKEN": "hf_secret"})
    assert hub.tokens == {"Bearer hf_secret"}
    assert "hf_secret" not in str(first)
    kept = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any(b"hf_secret" in content for content in kept)


def test_without_the_hub_client_the_cached_bundle_is_used(hub: Hub, load: Load) -> None:
    first = load("org/tiny")
    later = load("org/tiny", code="import sys\nsys.modules['huggingface_hub'] = None\n" + LOAD)
    assert later["fingerprint"] == first["fingerprint"]
    assert "needs huggingface_hub" in later["log"]


# Marks that a process waits for another one.
MARK_A_WAIT = """
import logging
class Mark(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("waiting for another export"):
            open("waits", "w").close()
logging.getLogger("flowvec").addHandler(Mark())
"""


def test_processes_that_start_together_export_once(hub: Hub, start: Start, tmp_path: Path) -> None:
    hub.pause_in = "model.safetensors"
    processes = [start("org/tiny", code=MARK_A_WAIT + LOAD) for _ in range(10)]
    wait_until(lambda: hub.requests.count("GET /api/models/org/tiny") == 10)
    wait_until((tmp_path / "work" / "waits").exists)
    hub.go.set()
    answers = [answer_of(process) for process in processes]
    assert len({answer["path"] for answer in answers}) == 1
    assert sum("exporting org/tiny" in answer["log"] for answer in answers) == 1
    assert any("waiting for another export of org/tiny" in answer["log"] for answer in answers)
    assert sum("GET /large/" in request for request in hub.requests) == 1


def test_a_changed_model_is_another_bundle_and_the_old_one_stays(
    hub: Hub, load: Load, model_files: dict[str, bytes]
) -> None:
    old = load("org/tiny")
    hub.repositories["org/tiny"].refs["v1"] = old["source"].split("@")[1]
    hub.add("org/tiny", changed(model_files))
    assert load("org/tiny", local_files_only=True)["handle"] == old["handle"]
    new = load("org/tiny")
    assert new["handle"] != old["handle"]
    assert new["fingerprint"] != old["fingerprint"]
    by_tag = load("org/tiny", revision="v1")
    assert (by_tag["handle"], by_tag["path"]) == (old["handle"], old["path"])
    assert load("org/tiny@v1", local_files_only=True)["path"] == old["path"]
    assert load("org/tiny", local_files_only=True)["handle"] == new["handle"]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "RepoNotFound", "has no model org/tiny, or it is private"),
        (404, "RepoNotFound", "has no model org/tiny, or it is private"),
        (403, "GatedRepo", "access to org/tiny must be granted"),
        (404, "RevisionNotFound", "org/tiny has no revision 'main'"),
        (403, None, "the hub refuses org/tiny"),
        (503, None, "the hub answers 503"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    hub: Hub, load: Load, tmp_path: Path, status: int, code: str | None, words: str
) -> None:
    hub.repositories["org/tiny"].status, hub.repositories["org/tiny"].error_code = status, code
    answer = load("org/tiny")
    assert answer["error"] == "BundleError"
    assert words in answer["message"]
    assert "\n" not in answer["message"]
    assert not (tmp_path / "cache" / "bundles").exists()


def test_an_unknown_name_and_revision_are_named(hub: Hub, load: Load) -> None:
    assert "there is no bundle 'no-such-model'" in load("no-such-model")["message"]
    assert "has no revision 'v9'" in load("org/tiny", revision="v9")["message"]
    commit = "0" * 40
    pinned = load("org/tiny", revision=commit)
    assert pinned["error"] == "ExportError"
    assert f"has no revision '{commit}'" in pinned["message"]
    assert "another revision" in load("org/tiny@v1", revision="v2")["message"]
    assert "must be a branch" in load("org/tiny", revision="../main")["message"]


@pytest.mark.parametrize("problem", ["refused", "overloaded"])
def test_a_hub_that_cannot_be_reached_leaves_the_cached_bundle(
    hub: Hub, load: Load, problem: str
) -> None:
    first = load("org/tiny")
    environment = {}
    if problem == "refused":
        environment = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    else:
        hub.repositories["org/tiny"].status = 503
    later = load("org/tiny", environment=environment)
    assert later["path"] == first["path"]
    warnings = [line for line in later["log"].splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert "the hub cannot be asked" in warnings[0]
    assert first["handle"].split("@")[1] in warnings[0]
    other = load("org/other", environment=environment | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert other["error"] == "BundleError"
    assert "\n" not in other["message"]


def test_a_model_that_is_gone_is_loaded_only_on_request(hub: Hub, load: Load) -> None:
    first = load("org/tiny")
    del hub.repositories["org/tiny"]
    gone = load("org/tiny")
    assert gone["error"] == "BundleError"
    assert "local_files_only=True" in gone["message"]
    assert load("org/tiny", local_files_only=True)["path"] == first["path"]


def test_offline_there_is_what_this_machine_has(hub: Hub, load: Load, tmp_path: Path) -> None:
    missing = load("org/tiny", local_files_only=True)
    assert missing["error"] == "BundleError"
    assert "requests to the hub are turned off" in missing["message"]
    assert not hub.requests
    # What another program has downloaded into the hub client's own cache is enough.
    code = "import sys, huggingface_hub as hub; hub.snapshot_download(sys.argv[1]); print('{}')"
    load("org/tiny", code=code)
    first = load("org/tiny", local_files_only=True)
    hub.requests.clear()
    for name in ("org/tiny", first["handle"]):
        again = load(
            name,
            environment={"FLOWVEC_CACHE": str(tmp_path / name[-3:]), "HF_HUB_OFFLINE": "1"},
        )
        assert (again["handle"], again["vector"]) == (first["handle"], first["vector"])
    assert not hub.requests


def test_what_could_be_a_path_never_reaches_the_hub(
    hub: Hub, load: Load, tmp_path: Path, model_files: dict[str, bytes]
) -> None:
    for name in ("org/tiny", "tiny", "here/tiny"):
        hub.add(name, model_files)
    (tmp_path / "work" / "here").mkdir()
    code = """
import json, sys
from pathlib import Path
from flowvec import Encoder
from flowvec.errors import FlowvecError
answers = []
for name in [*json.loads(sys.argv[1]), Path("org/tiny")]:
    try:
        Encoder.load(name)
    except FlowvecError as error:
        answers.append([str(name), type(error).__name__, str(error)])
print(json.dumps({"answers": answers}))
"""
    names = [
        "./org/tiny", "./tiny", "../tiny", "/org/tiny", "~/org/tiny", "~nobody/tiny", "here/tiny",
        "here", "a/b/c", "org/tiny/", "org//tiny", "org/tiny.git", "org/-tiny", "org/a--b", "org",
        "@main", "org/tiny@", "C:\\\\org\\\\tiny", "https://hub/org/tiny", "x" * 5000,
        "", "  ", "\n",
    ]  # fmt: skip
    (tmp_path / "work" / "org").mkdir()  # `org` alone is a folder here
    answers = load(json.dumps(names), code=code)["answers"]
    assert len(answers) == len(names) + 1
    assert {kind for _, kind, _ in answers} == {"BundleError", "InputValueError"}
    assert all("\n" not in message for _, _, message in answers)
    assert all("empty" in message for name, _, message in answers if not name.strip())
    assert not hub.requests


def test_a_folder_of_the_organization_hides_no_cached_commit(
    hub: Hub, load: Load, tmp_path: Path
) -> None:
    first = load("org/tiny")
    (tmp_path / "work" / "org").mkdir()
    hub.requests.clear()
    assert load("org/tiny")["error"] == "BundleError"
    # What a collection recorded opens in every directory.
    assert load(first["handle"])["path"] == first["path"]
    assert not hub.requests


def test_a_collection_finds_the_commit_that_made_it(
    hub: Hub, command: Command, tmp_path: Path, model_files: dict[str, bytes]
) -> None:
    texts = tmp_path / "work" / "texts.txt"
    texts.write_text("the cat sleeps\nthe dog runs\n")

    done = command("index", "notes", "texts.txt", "--model", "org/tiny", "--revision", "main")
    assert done.returncode == 0, done.stderr
    old = hub.repositories["org/tiny"].refs["main"]
    hub.add("org/tiny", changed(model_files))
    hub.requests.clear()
    found = command("search", "notes", "the cat sleeps", "-k", "1")
    assert found.returncode == 0, found.stderr
    assert "the cat sleeps" in found.stdout
    assert not hub.requests
    info = command("info", "org/tiny", "--revision", old, "--json", offline=True)
    assert json.loads(info.stdout)["source"] == f"org/tiny@{old}"
    encoded = command("encode", "org/tiny", "texts.txt", "-o", "v.npy")
    assert encoded.returncode == 0, encoded.stderr
    assert (tmp_path / "work" / "v.npy").exists()
    missing = command("encode", "org/none", "texts.txt", "-o", "w.npy")
    assert missing.returncode == 2
    assert len(missing.stderr.splitlines()) == 1
