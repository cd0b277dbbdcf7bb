"""API keys are kept as hashes, and found by what callers send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowvec import InputValueError

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.keys import Key, Keys, make_key


def test_a_made_key_is_found_and_not_kept(tmp_path: Path) -> None:
    (token, line), (admin, admin_line) = make_key("alice"), make_key("bob", is_admin=True)
    path = tmp_path / "keys"
    path.write_text(f"\ufeff# keys\n\n{line}\n  {admin_line}\n", encoding="utf-8")
    keys = Keys.read(path)
    assert token not in path.read_text()
    assert isinstance(keys.find(token), Key)
    assert (keys.find(token).name, keys.find(token).is_admin) == ("alice", False)
    assert (keys.find(admin).name, keys.find(admin).is_admin) == ("bob", True)
    for wrong in ("", token[:-1], token + "x", "é", "\udcff"):
        assert keys.find(wrong) is None


def test_mistakes_in_a_file_are_named_without_showing_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for text, message in (
        ("alice sk-secret", r"line 1 is not `NAME sha256:DIGEST`"),
        ("# nothing", "there are no API keys"),
        (f"a sha256:{'0' * 64}\na sha256:{'1' * 64}", "two API keys are called 'a'"),
    ):
        path.write_text(text)
        with pytest.raises(InputValueError, match=message) as raised:
            Keys.read(path)
        assert "secret" not in str(raised.value)
    path.write_text("# keys", encoding="utf-16")
    with pytest.raises(InputValueError, match="not UTF-8"):
        Keys.read(path)
    with pytest.raises(InputValueError, match="cannot be a key's name"):
        make_key("a b")


def test_the_command_makes_keys_and_refuses_to_listen_openly(flowvec: Any) -> None:
    done = flowvec("serve", "--new-key", "alice", "--admin")
    assert done.stdout.startswith("alice sha256:")
    assert done.stdout.endswith(" admin\n")
    assert done.stderr.split()[-1].startswith("fv-")
    done = flowvec("serve", "mini", "--host", "0.0.0.0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--api-key-file" in done.stderr
    assert "name a model" in flowvec("serve").stderr
