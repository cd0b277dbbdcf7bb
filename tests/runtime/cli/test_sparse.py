"""`flowvec index` and `flowvec search` with a sparse encoder."""

from __future__ import annotations

import json
import shlex
import shutil

LINES = ["The cat sleeps.", "Stocks fell.", "A dog swims in the river.", "Rain in the night."]


def test_index_and_search_by_sparse_vectors(flowvec, tmp_path, tiny_dir, sparse_dir) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(LINES[:2]))
    assert flowvec("index", "c", "notes.txt", "--model", tiny_dir).returncode == 0
    # Rows that were there without a sparse vector get theirs too.
    (tmp_path / "notes.txt").write_text("\n".join(LINES))
    command = ("index", "c", "notes.txt", "--resume", "--sparse-model", sparse_dir)
    made = flowvec(*command)
    assert made.returncode == 0, made.stderr
    assert "2 rows added" in made.stdout
    assert "4 sparse vectors added" in made.stdout
    assert json.loads(flowvec(*command, "--json").stdout)["sparse_vectors"] == 0

    sparse = ("--sparse-model", sparse_dir)
    found = flowvec("search", "c", "Stocks fell.", *sparse, "-k", 1, "--json")
    assert found.returncode == 0, found.stderr
    (hit,) = json.loads(found.stdout)
    fused = flowvec("search", "c", "Stocks fell.", *sparse, "--hybrid", "--sparse-weight", 1,
                    "--json")  # fmt: skip
    best = json.loads(fused.stdout)[0]
    assert (best["id"], best["score"], best["sparse_score"]) == (hit["id"], 1.0, 1.0)
    assert fused.stderr == ""
    without = flowvec("search", "c", "Stocks fell.", "--hybrid")
    assert without.stderr == (
        "c has sparse vectors, which are not searched without --sparse-model\n"
    )
    info = json.loads(flowvec("info", "c", "--json").stdout)
    assert (info["sparse_rows"], info["sparse_model"]) == (4, str(sparse_dir))


def test_rows_that_lag_behind_are_told_with_the_command(
    flowvec, tmp_path, tiny_dir, sparse_dir, multi_vector_dir
) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(LINES[:2]))
    models = ("--sparse-model", sparse_dir, "--token-model", multi_vector_dir)
    made = flowvec("index", "my notes", "notes.txt", "--model", tiny_dir)
    assert (made.returncode, made.stderr) == (0, "")  # it has no other vectors
    assert flowvec("index", "my notes", *models).returncode == 0
    (tmp_path / "more.jsonl").write_text('{"id": "a", "text": "Snow."}\n{"id": 0, "text": "New."}')
    added = flowvec("index", "my notes", "more.jsonl", "--id-field", "id")
    command = (
        f"flowvec index 'my notes' --sparse-model {sparse_dir} --token-model {multi_vector_dir}"
    )
    assert added.stderr == (
        "my notes has 2 rows without sparse vectors and 2 rows without token vectors: "
        f"{command} makes them\n"
    )
    assert flowvec("index", "my notes", "more.jsonl", "--id-field", "id").stderr == ""  # no new row
    done = flowvec(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "my notes: 3 rows", "2 sparse vectors added", "token vectors of 2 rows added",
    ]  # fmt: skip
    again = flowvec(*shlex.split(command)[1:], "--json")
    assert json.loads(again.stdout) == {
        "path": "my notes", "rows": 3, "sparse_vectors": 0, "token_vectors": 0,
    }  # fmt: skip
    (tmp_path / "last.jsonl").write_text('{"id": "b", "text": "Rain."}')
    rows = ("last.jsonl", "--id-field", "id")
    into = ("encode", tiny_dir, *rows, "--into", "my notes")
    assert "my notes has 1 row without sparse vectors and 1 row without" in flowvec(*into).stderr
    (tmp_path / "last.jsonl").write_text('{"id": "b", "text": "Rain and snow."}')
    last = flowvec("index", "my notes", *rows, *models[:2])
    assert "my notes has 1 row without token vectors: flowvec index" in last.stderr
    info = json.loads(flowvec("info", "my notes", "--json").stdout)
    assert info["sparse_rows"] == info["rows"] == info["token_rows"] + 1


def test_another_sparse_model_is_refused_before_any_row_is_added(
    flowvec, tmp_path, tiny_dir, sparse_dir
) -> None:
    other = shutil.copytree(sparse_dir, tmp_path / "other") / "manifest.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"prompts": {"query": "x "}}))
    (tmp_path / "notes.txt").write_text(LINES[0])
    made = flowvec("index", "c", "notes.txt", "--model", tiny_dir, "--sparse-model", sparse_dir)
    assert made.returncode == 0, made.stderr
    (tmp_path / "notes.txt").write_text("\n".join(LINES))
    for files in ((), ("notes.txt", "--resume"), ("notes.txt", "--replace")):
        wrong = flowvec("index", "c", *files, "--sparse-model", other.parent)
        assert wrong.returncode == 2, wrong.stdout
        assert f"c has sparse vectors of {sparse_dir} (fingerprint" in wrong.stderr
        assert "that model as --sparse-model" in wrong.stderr
        info = json.loads(flowvec("info", "c", "--json").stdout)
        assert (info["rows"], info["sparse_rows"]) == (1, 1)


def test_a_command_without_files(flowvec, tmp_path, tiny_dir) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(LINES))
    made = flowvec("index", "c", "notes.txt", "--model", tiny_dir)
    assert made.returncode == 0
    for words, message in (
        (("c",), "give files to add, or - for standard input"),
        (("c", "--prune"), "give files to add, or - for standard input"),
        (("c", "--prune", "--full-text", "trigram"), "--prune cannot be used without files"),
        (("d", "--full-text", "trigram"), "d is not a collection yet; give files"),
        (("notes.txt", "c"), "notes.txt is a file: give the collection's directory first"),
        (("c", "--engine", "ray", "--model", tiny_dir, "--shards", 2), "give files to add"),
    ):
        done = flowvec("index", *words)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert flowvec("index", "c", "--full-text", "trigram").stdout == "c: 4 rows\n"
    assert json.loads(flowvec("info", "c", "--json").stdout)["full_text"] == "trigram"


def test_sparse_options_that_have_no_use_are_refused(
    flowvec, tmp_path, tiny_dir, sparse_dir
) -> None:
    (tmp_path / "notes.txt").write_text(LINES[0])
    assert flowvec("index", "c", "notes.txt", "--model", tiny_dir).returncode == 0
    for options, message in (
        (("--sparse-weight", 0.5, "--hybrid"), "--sparse-weight needs --hybrid and --sparse-model"),
        (("--sparse-model", "x"), "c has no sparse vectors: flowvec index with --sparse-model"),
    ):
        done = flowvec("search", "c", "cat", *options)
        assert done.returncode == 2, done.stdout
        assert message in done.stderr
    wrong = flowvec("index", "c", "notes.txt", "--resume", "--sparse-model", tiny_dir)
    assert f"{tiny_dir} is an embedder" in wrong.stderr
    assert "open it with flowvec.Encoder.load" in wrong.stderr
    made = flowvec("index", "c", "notes.txt", "--resume", "--sparse-model", sparse_dir)
    assert made.returncode == 0
    for options, message in (
        (("--sparse-model", "x", "--exact"), "add --hybrid"),
        (("--sparse-model", tiny_dir), "open it with flowvec.Encoder.load"),
    ):
        done = flowvec("search", "c", "cat", *options)
        assert done.returncode == 2, done.stdout
        assert message in done.stderr
