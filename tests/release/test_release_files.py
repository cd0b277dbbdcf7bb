"""Files that a release consists of: the container, CI, the bill of materials, the guides."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import flowvec
from flowvec.hnsw import library
from flowvec.native import encoder

ROOT = Path(__file__).resolve().parents[2]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage of the Containerfile."""
    text = (ROOT / "Containerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    made: list[list[tuple[str, str]]] = []
    for word, rest in lines:
        if word == "FROM":
            made.append([])
        made[-1].append((word, rest))
    return made


def test_the_container_has_two_stages_and_no_root() -> None:
    build, served = stages()
    assert not any(word == "COPY" and "--from=build" not in rest for word, rest in served)
    # The compiler stays behind.
    assert not any("apt-get" in rest for _, rest in served)
    (user,) = [rest for word, rest in served if word == "USER"]
    assert int(user) > 0
    ignored = (ROOT / ".containerignore").read_text("utf-8").splitlines()
    for word, rest in build:
        for source in rest.split()[:-1] if word == "COPY" else ():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, f"{source} is not sent to the build"


@pytest.mark.process
def test_the_containers_command_and_its_check_are_the_servers() -> None:
    served = dict(stages()[1])
    command = json.loads(served["ENTRYPOINT"]) + json.loads(served["CMD"])
    program = [sys.executable, "-m", *command[:2], "--help"]
    wide = {**os.environ, "COLUMNS": "300"}  # no name is cut
    run = subprocess.run(program, capture_output=True, text=True, check=True, env=wide)
    help_text = run.stdout
    for part in command[2:]:
        assert not part.startswith("--") or part in help_text, part
    port, health_port = served["EXPOSE"].split()
    assert f"default: {port}" in help_text
    variable = f"FLOWVEC_HEALTH_PORT={health_port}"
    assert variable in served["ENV"].split()
    assert "FLOWVEC_HEALTH_PORT" in help_text
    check = json.loads(served["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    assert f":{health_port}/ready" in check[2]


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda f: f.name)
def test_githubs_files_are_yaml(file: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="needs the extra [export]")
    parsed: dict[Any, Any] = yaml.safe_load(file.read_text("utf-8"))
    if file.parent.name == "workflows":
        for job in parsed["jobs"].values():
            for line in (step["run"] for step in job["steps"] if "run" in step):
                words = shlex.split(line)
                if words[0] == "bash":
                    assert (ROOT / words[1]).is_file(), words[1]
    elif "body" in parsed:
        assert {"name", "description"} <= parsed.keys()
        ids = [field["id"] for field in parsed["body"]]
        assert len(set(ids)) == len(ids)


def test_ci_runs_the_gate() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert "bash .ci/run" in text
    assert "bash .ci/release" in text


def test_the_bill_of_materials_has_each_package_once() -> None:
    bill = runpy.run_path(str(ROOT / ".ci/sbom"))["bill"]
    url = "https://example.org/numpy-2.0-cp311.whl"
    report = {
        "install": [
            {"metadata": {"name": "flowvec", "version": "1", "license_expression": "Apache-2.0"}},
            {
                "metadata": {"name": "Some_Package", "version": "2", "license": "MIT\nlong text"},
                "download_info": {"url": url, "archive_info": {"hashes": {"sha256": "ab"}}},
            },
        ]
    }
    made = bill(report)
    assert made["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    (other,) = made["components"]
    assert other["purl"] == "pkg:pypi/some-package@2"
    assert other["hashes"] == [{"alg": "SHA-256", "content": "ab"}]
    assert other["licenses"] == [{"license": {"name": "MIT"}}]
    assert made["dependencies"][0]["dependsOn"] == [other["bom-ref"]]
    assert bill(report) == made


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_guides_name_files_that_exist(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    named = re.findall(r"`((?:runtime|export|bench|tests|docs)/[\w./-]+)`", text)
    linked = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
    run = re.findall(r"^pytest (\S+/\S+)", text, re.MULTILINE)
    missing = [path for path in [*named, *linked, *run] if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows ignores CC and CXX")
def test_without_a_compiler_the_build_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, "/nonexistent/c++")
    before = (ROOT / "runtime/flowvec/hnsw" / library.LIBRARY).read_bytes()
    build = runpy.run_path(str(ROOT / "hatch_build.py"))["build"]
    with pytest.raises(
        SystemExit, match=r"nonexistent(.|\n)*Install a C\+\+17 compiler.* or a wheel"
    ):
        build()
    assert (ROOT / "runtime/flowvec/hnsw" / library.LIBRARY).read_bytes() == before


def test_the_library_that_is_built_is_the_one_that_is_loaded() -> None:
    assert runpy.run_path(str(ROOT / "hatch_build.py"))["NAME"] == library.LIBRARY
    source = (ROOT / "native/hnsw.cpp").read_text("utf-8")
    exported = set(re.findall(r"^FLOWVEC_API .*?flowvec_hnsw_(\w+)\(", source, re.MULTILINE))
    others = {"version", "simd", "scan_simd", "error", "errno"}
    others |= {"free", "codes_free", "hnswlib_free", "pairs_free"}
    assert exported - others == set(library.SIGNATURES)
    assert runpy.run_path(str(ROOT / "hatch_build.py"))["ENCODER_NAME"] == encoder.LIBRARY
    source = (ROOT / "native/encoder/encoder.cpp").read_text("utf-8")
    exported = set(re.findall(r"^FLOWVEC_API .*?flowvec_encoder_(\w+)\(", source, re.MULTILINE))
    others = {"version", "error", "set", "free", "workspace_free"}
    assert exported - others == set(encoder.SIGNATURES)
    # The licence asks for a notice in files that were changed.
    changed = (ROOT / "native/hnswlib/hnswalg.h").read_text("utf-8")
    assert changed.startswith("// This file was changed for flowvec")
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    (licences,) = re.findall(r"^license-files = \[(.*?)\]$", pyproject, re.MULTILINE | re.DOTALL)
    for pattern in re.findall('"(.+?)"', licences):
        assert list(ROOT.glob(pattern)), pattern


def test_the_version_fits_the_changelog() -> None:
    """The first section is this version's: dated, or unreleased if it is in development."""
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    (version,) = re.findall(r'^version = "(.+)"$', pyproject, re.MULTILINE)
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (first, when), *_ = re.findall(r"^## \[(.+)\] - (.+)$", changelog, re.MULTILINE)
    assert first == version
    if Version(version).is_devrelease:
        assert when == "unreleased"
    else:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", when)
    assert flowvec.__version__ == metadata.version("flowvec")


@pytest.mark.process
def test_the_container_builds() -> None:
    builder = shutil.which("podman") or shutil.which("buildah")
    if builder is None:
        pytest.skip("needs podman or buildah")
    base = stages()[1][0][1]
    if subprocess.run([builder, "pull", base], capture_output=True).returncode:
        pytest.skip("needs the base image of the Containerfile")
    program = [builder, "build", "--format", "docker", "-f", "Containerfile", "."]
    built = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "HEALTHCHECK is not supported" not in built.stderr
