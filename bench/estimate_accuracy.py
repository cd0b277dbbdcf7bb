"""How near the estimate of a bulk job (`--dry-run`) comes to the job's own time.

    python bench/estimate_accuracy.py --texts wiki.txt.xz --tokenizer bert-base-uncased

Three models: `mini`, and random weights of the shapes of MiniLM-L6 and BERT-base. Each is estimated
and run three times in turn, each in a process of its own; a line for each gives both times. Needs
the extras [cpu], [files] and [bench].
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from flowvec_bench.peers.model_forms import random_model
from flowvec_bench.texts import natural_sentences

# Rows, so that a job takes about half a minute on two cores.
_ROWS = {"mini": 600_000, "minilm-l6": 15_000, "bert-base": 2_000}
_ROUNDS = 3
_SENTENCES = 200_000


def main() -> None:
    """Estimate and run each job, and print a line for each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    arguments = parser.parse_args()
    sentences = list(islice(natural_sentences(arguments.texts), _SENTENCES))
    with tempfile.TemporaryDirectory(prefix="flowvec-") as name:
        folder = Path(name)
        for model, rows in _ROWS.items():
            bundle = model
            if model != "mini":
                source = random_model(model, arguments.tokenizer, 256, folder / f"{model}-source")
                bundle = str(folder / model)
                flowvec("export", str(source), "-o", bundle)
            texts = folder / f"{model}.jsonl"
            with texts.open("w", encoding="utf-8") as file:
                for row in range(rows):
                    text = f"{sentences[row % _SENTENCES]} {row // _SENTENCES}"
                    file.write(json.dumps({"id": row, "text": text}) + "\n")
            for number in range(_ROUNDS):
                job = [bundle, str(texts), "--id-field", "id", "--json"]
                estimate = json.loads(flowvec("encode", *job, "--dry-run"))
                done = json.loads(flowvec("encode", *job, "-o", str(folder / f"{model}-{number}")))
                ratio = estimate["seconds"] / done["seconds"]
                print(f"{model:>10}: estimate {estimate['seconds']:6.1f} s, job "
                      f"{done['seconds']:6.1f} s, ratio {ratio:.2f}; sample of "
                      f"{estimate['sampled']} rows", flush=True)  # fmt: skip


def flowvec(*words: str) -> str:
    """Run the command, and return what it prints."""
    code = "from flowvec.cli.main import main; main()"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout


if __name__ == "__main__":
    main()
