"""Random checkpoints of every architecture, made on the spot: nothing is downloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.engine.selection import available_providers  # noqa: F401  (fails early without onnxruntime)

torch = pytest.importorskip("torch", reason="needs the extra [export]")
transformers = pytest.importorskip("transformers", reason="needs the extra [export]")

# The models here are so small that a second thread costs more than it does.
torch.set_num_threads(1)

import tokenizers  # noqa: E402
from tokenizers import decoders, models, pre_tokenizers, processors, trainers  # noqa: E402

from flowvec import Bundle  # noqa: E402
from flowvec_export import export  # noqa: E402
from tests import trace_memo  # noqa: E402
from tests.vocabularies import fill_unigram, fill_word_piece  # noqa: E402

CORPUS = [
    "The cat sleeps on the red mat while the dog runs in the garden.",
    "Stocks fell on Monday as investors feared that rates would rise again.",
    "A man is eating bread, and a woman is reading a book about the sea.",
    "Numbers such as 12, 345 and 6.78 occur; so do names like São Paulo.",
] * 20

# Tracing a layer takes longer than most tests. What passes from layer to layer is tested with DEEP
# layers.
WIDTH, LAYERS, DEEP, HEADS, POSITIONS = 48, 1, 2, 4, 40

Checkpoint = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def _traces_are_remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with trace_memo.traces_are_remembered(tmp_path_factory):
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Weights that a test draws do not depend on the tests before it."""
    torch.manual_seed(0)


@cache
def _few_texts() -> list[str]:
    from flowvec_export.variants.ranges import calibration_texts

    return calibration_texts()[::9]


@pytest.fixture(autouse=True)
def _few_calibration_texts(request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedders are measured on a ninth of the texts, but where measures are what is tested."""
    if "variants" not in request.path.parts:
        monkeypatch.setattr("flowvec_export.build.calibration_texts", _few_texts)


@pytest.fixture
def traced_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], None]:
    """For tests of tracing itself: no trace is taken from the cache, nor one of before a call."""

    def forget() -> None:
        monkeypatch.setattr(trace_memo, "FOLDER", tmp_path_factory.mktemp("traces"))

    forget()
    return forget


@pytest.fixture
def traced_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], None]:
    """Let what is traced for a model of transformers be what a function makes of it."""
    from flowvec_export.assembly import from_torch

    made = from_torch.from_transformers

    def install(change: Callable[[Any], Any]) -> None:
        monkeypatch.setattr(
            from_torch, "from_transformers", lambda *given, **named: change(made(*given, **named))
        )

    return install


def byte_bpe(specials: list[str]) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _unigram(specials: list[str]) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    fill_unigram(made, CORPUS, specials, 200, "<unk>")
    return made


def _word_piece(specials: list[str]) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fill_word_piece(made, CORPUS, specials, 400, "[UNK]")
    return made


BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}
TOKENIZERS: dict[str, tuple[Any, dict[str, str]]] = {
    "bert": (_word_piece, BERT),
    "distilbert": (_word_piece, BERT),
    "roberta": (byte_bpe, _ROBERTA),
    "xlm-roberta": (_unigram, _ROBERTA),
    "mpnet": (_word_piece, {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "[UNK]"}),
    "camembert": (_unigram, _ROBERTA),
}


def make_checkpoint(folder: Path, architecture: str, **changes: Any) -> Path:
    """Write a random encoder with its tokenizer as a Hugging Face directory."""
    train, names = TOKENIZERS.get(architecture, TOKENIZERS["bert"])
    tokenizer = train(list(names.values()))
    cls, sep, pad = (tokenizer.token_to_id(names[n]) for n in ("cls", "sep", "pad"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{names['cls']} $A {names['sep']}",
        special_tokens=[(names["cls"], cls), (names["sep"], sep)],
    )
    layers = changes.pop("num_hidden_layers", LAYERS)
    offset = pad + 1 if architecture in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad}
    if architecture == "distilbert":
        sizes |= {
            "dim": WIDTH, "n_layers": layers, "n_heads": HEADS, "hidden_dim": 2 * WIDTH,
            "max_position_embeddings": POSITIONS,
        }  # fmt: skip
    else:
        sizes |= {
            "hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": HEADS,
            "intermediate_size": 2 * WIDTH, "max_position_embeddings": POSITIONS + offset,
        }  # fmt: skip
    config = transformers.AutoConfig.for_model(architecture, **(sizes | changes))
    torch.manual_seed(0)
    kind = transformers.T5EncoderModel if architecture == "t5" else transformers.AutoModel
    model = kind(config) if architecture == "t5" else kind.from_config(config)
    # Freshly initialized models are close to the identity, which would hide mistakes.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.25)
            if name.lower().endswith("norm.weight"):
                parameter.add_(1.0)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "attention_mask"],  # DistilBERT takes no token types
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A random checkpoint of an architecture, made once for each set of changes."""
    made: dict[str, Path] = {}

    def get(architecture: str, **changes: Any) -> Path:
        key = json.dumps([architecture, changes], sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("checkpoints") / architecture
            made[key] = make_checkpoint(folder, architecture, **changes)
        return made[key]

    return get


TEXTS = [
    "",
    "The cat",
    "Stocks fell on Monday.",
    "a",
    "A woman is reading a book about the sea, and a man is eating bread " * 3,
    "São Paulo 12,345",
    "the dog runs in the garden while investors feared rates",
    *[sentence[: 7 * (i + 1)] for i, sentence in enumerate(CORPUS[:4] * 3)],
]


@pytest.fixture(scope="session")
def bert(checkpoint: Checkpoint) -> Path:
    return checkpoint("bert")


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Different sentences of the corpus' words, 3 to 14 of them each."""
    words = sorted({word for sentence in CORPUS for word in sentence.split()})
    rng = np.random.default_rng(seed)
    made: dict[str, None] = {}
    while len(made) < count:
        made[" ".join(rng.choice(words, rng.integers(3, 15)))] = None
    return list(made)


@pytest.fixture(scope="module")
def bert_bundle(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export(checkpoint("bert"), tmp_path_factory.mktemp("bundles") / "bert")


def mean_in_torch(folder: Path, texts: list[str], kind: Any = None) -> np.ndarray:
    """Normalized mean vectors straight from transformers, one text at a time."""
    kind = kind or transformers.AutoModel
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state[0]
        rows.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    return np.stack(rows)


def with_weights(folder: Path, tmp_path: Path, change) -> Path:
    """A copy of a checkpoint with changed weights."""
    from safetensors.torch import load_file, save_file

    copy = Path(shutil.copytree(folder, tmp_path / "source"))
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy
