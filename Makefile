.PHONY: test lint ci mini backbone

test:
	pytest

lint:
	ruff check . && ruff format --check . && mypy && lint-imports

ci:
	bash .ci/run

# Retrain the shipped model; see models/mini/README.md.
mini:
	python models/mini/prepare.py
	python models/mini/word_vectors.py
	python models/mini/train.py
	python models/mini/save.py
	flowvec export models/mini/checkpoint -o runtime/flowvec/models/mini --name mini --weights float16 --overwrite

# Pre-train the anisotropic model that transforms are proved on; see models/backbone/README.md.
backbone:
	python models/mini/prepare.py
	python models/backbone/train.py --steps 6750 --decay-steps 2000
	python models/backbone/save.py
