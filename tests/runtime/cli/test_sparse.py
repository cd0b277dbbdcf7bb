"""`flowvec index` and `flowvec search` with a sparse encoder."""

from __future__ import annotations

import json

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
    info = json.loads(flowvec("info", "c", "--json").stdout)
    assert (info["sparse_rows"], info["sparse_model"]) == (4, str(sparse_dir))


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
