"""What flowvec says of its own installation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowvec import MissingDependencyError
from flowvec.optional import imported_whole, require

pytestmark = pytest.mark.process


def line_of(site: Path, origin: object | None) -> str:
    """The line of a flowvec that was installed from somewhere."""
    info = site / "flowvec-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flowvec\nVersion: 9.9\n")
    if origin is not None:
        text = origin if isinstance(origin, str) else json.dumps(origin)
        (info / "direct_url.json").write_text(text)
    code = "from flowvec.optional import install_line; print(install_line('cpu,files'))"
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600,
                         check=True, env=os.environ | {"PYTHONPATH": path})  # fmt: skip
    return run.stdout.strip().removeprefix("python -m pip install ")


def test_the_install_line_fits_the_source_of_the_package(tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    wheel = tmp_path / "flowvec-9.9-py3-none-any.whl"
    wheel.touch()
    url = clone.as_uri()
    assert line_of(tmp_path / "b", {"url": url, "dir_info": {}}) == f'"{clone}[cpu,files]"'
    (clone / "constraints.txt").touch()
    editable = {"url": url, "dir_info": {"editable": True}}
    assert line_of(tmp_path / "c", editable) == (
        f'-c "{clone / "constraints.txt"}" -e "{clone}[cpu,files]"'
    )
    archive = {"url": wheel.as_uri(), "archive_info": {}}
    assert line_of(tmp_path / "d", archive) == f'"flowvec[cpu,files] @ {wheel.as_uri()}"'
    from_git = {"url": "https://example.org/flowvec.git", "vcs_info": {"vcs": "git"}}
    assert line_of(tmp_path / "e", from_git) == (
        '"flowvec[cpu,files] @ git+https://example.org/flowvec.git"'
    )
    from_web = {"url": "https://example.org/flowvec-9.9.whl", "archive_info": {}}
    assert line_of(tmp_path / "f", from_web) == (
        '"flowvec[cpu,files] @ https://example.org/flowvec-9.9.whl"'
    )


@pytest.mark.parametrize(
    "origin", [None, "", "{", "[]", "{}", '{"url": "file:///not/there/any/more"}', '{"url": "x"}']
)
def test_without_a_source_the_line_is_for_a_clone_or_a_wheel(
    tmp_path: Path, origin: str | None
) -> None:
    """Never for the bare name: flowvec is not published, so the name may be anybody's."""
    line = line_of(tmp_path / "a", origin)
    assert line.startswith('-c constraints.txt ".[cpu,files]" in a clone')
    assert '"WHEEL[cpu,files]"' in line
    assert "flowvec[" not in line


def test_a_message_about_torch_says_how_to_do_without_cuda() -> None:
    with pytest.raises(MissingDependencyError, match="it needs not_there: "):
        require("it", "cpu", "json", "not_there")
    code = (
        "import importlib.util, sys; importlib.util.find_spec = lambda name: None\n"
        "sys.platform = 'linux'\n"
        "from flowvec.optional import require; require('it', 'cpu,export', 'torch', 'onnx')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert "it needs torch, onnx: " in run.stderr
    assert "CPU wheels" in run.stderr
    assert "docs/install.md#torch" in run.stderr


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the interrupt is POSIX's")
def test_an_interrupt_does_not_stop_an_import_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "large_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import large_package.part, large_package.slow\nlarge_package.part\n"
    )
    (package / "part.py").write_text("")
    (package / "slow.py").write_text("import time\ntime.sleep(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            imported_whole("large_package")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert imported_whole("large_package").part is sys.modules["large_package.part"]
