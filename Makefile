.PHONY: test lint docs gate mini backbone

test:
	pytest

lint:
	ruff check . && ruff format --check . && .ci/shape && mypy && lint-imports

# The site, in build/site; needs the extra [docs].
docs:
	mkdocs build

gate:
	bash .ci/run

# Retrain the shipped model, or go on where it stopped; see models/mini/README.md.
MINI = models/mini/work

mini: $(MINI)/trained.npz
	python models/mini/save.py
	flowvec export models/mini/checkpoint -o runtime/flowvec/models/mini --name mini --weights float16 --overwrite

$(MINI)/paragraph.npy:
	python models/mini/prepare.py

$(MINI)/word_vectors.npy: $(MINI)/paragraph.npy
	python models/mini/word_vectors.py

$(MINI)/words.npz: $(MINI)/paragraph.npy
	python models/mini/words.py

$(MINI)/trained.npz: $(MINI)/word_vectors.npy $(MINI)/words.npz
	python models/mini/train.py

# Pre-train the anisotropic model that transforms are proved on; see models/backbone/README.md.
backbone:
	python models/mini/prepare.py --tokenizer models/backbone/checkpoint/tokenizer.json --out models/backbone/work
	python models/backbone/train.py --steps 6750 --decay-steps 2000
	python models/backbone/save.py
