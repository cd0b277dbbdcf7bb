"""A checkpoint is untrusted: none of its code is run, and nothing outside it is read."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from flowvec import Encoder
from flowvec.errors import ExportError
from flowvec_export import export, fit
from flowvec_export.assembly.parity import Parity
from flowvec_export.sources import files as checkpoint_files
from flowvec_export.sources import load
from flowvec_export.sources.load import read_source
from flowvec_export.trust import Trust
from tests.export.conftest import TEXTS, make_texts, mean_in_torch
from tests.export.sources.test_sentence_transformers import Dense, Normalize, Pooling, make


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    return Path(shutil.copytree(checkpoint("bert"), tmp_path / "source"))


def pickled(folder: Path, content: object | None = None) -> Path:
    weights = load_file(folder / "model.safetensors")
    torch.save(content or weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


class Bomb:
    """Writes a file if it is unpickled without protection."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


# --- pickles --------------------------------------------------------------------------------------


def test_a_pickle_is_refused_unless_allowed(checkpoint, folder, tmp_path) -> None:
    pickled(folder)
    with pytest.raises(ExportError, match=r"model\.bin.*--allow-pickle"):
        export(folder, tmp_path / "b")
    bundle = export(folder, tmp_path / "b", allow_pickle=True, calibration=())
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        parity = Parity.of(encoder.encode(TEXTS), mean_in_torch(checkpoint("bert"), TEXTS))
    assert parity.max_relative_error <= 1e-4


def test_safetensors_come_before_a_pickle(folder, tmp_path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    read_source(folder)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("trust", [None, Trust(pickle=True)])
def test_a_pickle_runs_no_code_even_where_it_is_allowed(folder, tmp_path, trust) -> None:
    pickled(folder, {"embeddings.word_embeddings.weight": Bomb(tmp_path / "mark")})
    with pytest.raises(ExportError):
        read_source(folder, trust=trust)
    assert not (tmp_path / "mark").exists()


def test_a_pickled_dense_layer_is_refused_as_well(checkpoint, tmp_path) -> None:
    make(tmp_path / "st", checkpoint("bert"), Pooling(48), Dense(48, 8), Normalize())
    dense = tmp_path / "st" / "2_Dense"
    torch.save(load_file(dense / "model.safetensors"), dense / "pytorch_model.bin")
    (dense / "model.safetensors").unlink()
    with pytest.raises(ExportError, match=r"2_Dense .*as a pickle"):
        read_source(tmp_path / "st")
    assert read_source(tmp_path / "st", trust=Trust(pickle=True)).transforms


def test_export_and_fit_have_the_options_of_trust(flowvec, folder, tmp_path) -> None:
    pickled(folder)
    refused = flowvec("export", folder, "-o", "b")
    assert refused.returncode == 2
    assert "--allow-pickle" in refused.stderr
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(60)))
    arguments = ["fit", "standardise", "--model", folder, "--corpus", "texts.txt", "-o"]
    refused = flowvec(*arguments, "t.safetensors")
    assert "--allow-pickle" in refused.stderr
    done = flowvec(*arguments, "t.safetensors", "--allow-pickle")
    assert done.returncode == 0, done.stderr
    done = flowvec("export", folder, "-o", "b", "--allow-pickle", "--prompt", "query=q: ")
    assert done.returncode == 0, done.stderr
    with Encoder.load(tmp_path / "b") as encoder:
        assert encoder.info().prompts == {"query": "q: "}
    for wrong in (["--prompt", "query"], ["--prompt", "=x"], ["--default-prompt", "nowhere"]):
        failed = flowvec("export", folder, "-o", "c", "--allow-pickle", "--quiet", *wrong)
        assert (failed.returncode, len(failed.stderr.strip().splitlines())) == (2, 1)


# --- code -----------------------------------------------------------------------------------------

# An encoder like Nomic's that transformers does not know: rotary positions, no biases, a gated
# feed-forward network. It writes a file where it is run.
CODE = """
from pathlib import Path
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

Path(r"{mark}").touch()

class TinyConfig(PretrainedConfig):
    model_type = "tiny_rotary"

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, mask, cos, sin):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        def turn(t):
            a, b = t.chunk(2, dim=-1)
            return t * cos + torch.cat([-b, a], dim=-1) * sin
        scores = turn(q) @ turn(k).transpose(1, 2) / x.shape[-1] ** 0.5 + mask
        x = self.norm1(x + self.out(torch.softmax(scores, -1) @ v))
        return self.norm2(x + self.down(nn.functional.silu(self.gate(x)) * self.up(x)))

class TinyModel(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config.hidden_size) for _ in range(config.num_hidden_layers)
        )
        self.post_init()

    def forward(self, input_ids, attention_mask=None, output_hidden_states=False, **_):
        x = self.words(input_ids)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        half = torch.arange(0, x.shape[-1], 2) / x.shape[-1]
        angles = torch.arange(input_ids.shape[1])[:, None] * 100.0 ** -half
        angles = torch.cat([angles, angles], dim=-1)
        mask = (1 - attention_mask[:, None, :].to(x.dtype)) * -1e4
        states = [x]
        for layer in self.layers:
            x = layer(x, mask, angles.cos(), angles.sin())
            states.append(x)
        return BaseModelOutput(last_hidden_state=x, hidden_states=tuple(states))
"""


@pytest.fixture
def with_code(checkpoint, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from transformers import dynamic_module_utils

    modules = str(tmp_path / "modules")
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", modules)
    monkeypatch.syspath_prepend(modules)
    folder = tmp_path / "custom"
    shutil.copytree(checkpoint("bert"), folder)
    (folder / "modeling_tiny.py").write_text(CODE.replace("{mark}", str(tmp_path / "mark")))
    rng = np.random.default_rng(0)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    shapes = {"words.weight": (vocabulary, 48)}
    for name, shape in {
        "qkv": (144, 48), "out": (48, 48), "gate": (96, 48), "up": (96, 48), "down": (48, 96),
    }.items():  # fmt: skip
        shapes[f"layers.0.{name}.weight"] = shape
    from safetensors.torch import save_file

    weights = {
        name: torch.from_numpy(rng.normal(size=shape).astype(np.float32) * 0.3)
        for name, shape in shapes.items()
    }
    for norm in ("norm1", "norm2"):
        weights |= {f"layers.0.{norm}.weight": torch.ones(48)}
        weights |= {f"layers.0.{norm}.bias": torch.zeros(48)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "tiny_rotary", "architectures": ["TinyModel"],
                "auto_map": {"AutoConfig": "modeling_tiny.TinyConfig",
                             "AutoModel": "modeling_tiny.TinyModel"},
                "vocab_size": vocabulary, "hidden_size": 48, "num_hidden_layers": 1,
                "num_attention_heads": 1, "pad_token_id": 0,
            }
        )
    )  # fmt: skip
    return folder


@pytest.mark.parity
def test_code_of_a_checkpoint_runs_only_where_it_is_trusted(with_code, tmp_path) -> None:
    with pytest.raises(ExportError, match=r"tiny\.py.*--trust-remote-code"):
        export(with_code, tmp_path / "b")
    assert not (tmp_path / "mark").exists()
    bundle = export(with_code, tmp_path / "b", trust_remote_code=True, calibration=())
    assert (tmp_path / "mark").exists()
    model = transformers.AutoModel.from_pretrained(with_code, trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(with_code)
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            output = model(**tokenizer(text, truncation=True, return_tensors="pt"))
        rows.append(torch.nn.functional.normalize(output.last_hidden_state[0].mean(0), dim=0))
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        parity = Parity.of(encoder.encode(TEXTS), torch.stack(rows).numpy())
    assert parity.max_relative_error <= 1e-4


def test_code_that_transformers_has_too_is_not_taken_from_the_checkpoint(
    checkpoint, folder, tmp_path
) -> None:
    mark = tmp_path / "mark"
    (folder / "code.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    say(folder / "config.json", auto_map={"AutoConfig": "code.C", "AutoModel": "code.M"})
    assert read_source(folder).sha256() == read_source(checkpoint("bert")).sha256()
    assert not mark.exists()


def test_a_module_with_custom_code_is_never_imported(checkpoint, tmp_path) -> None:
    make(tmp_path / "st", checkpoint("bert"), Pooling(48))
    modules = json.loads((tmp_path / "st/modules.json").read_text())
    modules[1]["type"] = "somebody.Pooling"
    (tmp_path / "st/modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match=r"somebody\.Pooling.* code"):
        read_source(tmp_path / "st", trust=Trust(remote_code=True))


# --- what leaves the directory, is missing or too large -------------------------------------------


@pytest.mark.parametrize("place", ["config.json", "1_Pooling", "README.md"])
def test_links_that_lead_out_are_refused(checkpoint, tmp_path, place) -> None:
    make(tmp_path / "st", checkpoint("bert"), Pooling(48))
    (tmp_path / "st/README.md").touch()
    shutil.move(tmp_path / "st" / place, tmp_path / "elsewhere")
    (tmp_path / "st" / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ExportError, match=f"{place} .*leads out"):
        read_source(tmp_path / "st")


def test_a_link_to_nothing_is_named(folder) -> None:
    (folder / "broken.json").symlink_to("nowhere")
    with pytest.raises(ExportError, match=r"broken\.json .*to nothing"):
        read_source(folder)


@pytest.mark.parametrize("path", ["../../outside", "/etc", "a/../../b"])
def test_module_paths_that_lead_out_are_refused(checkpoint, tmp_path, path) -> None:
    make(tmp_path / "st", checkpoint("bert"), Pooling(48))
    modules = json.loads((tmp_path / "st/modules.json").read_text())
    modules[1]["path"] = path
    (tmp_path / "st/modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match="leads out of it"):
        read_source(tmp_path / "st")


def test_a_hidden_folder_is_not_read(checkpoint, tmp_path) -> None:
    # Hidden folders, as version control's, are not looked through for links.
    make(tmp_path / "st", checkpoint("bert"), Pooling(48))
    (tmp_path / "outside").mkdir()
    shutil.move(tmp_path / "st/1_Pooling", tmp_path / "outside/pooling")
    (tmp_path / "st/.hidden").symlink_to(tmp_path / "outside")
    modules = json.loads((tmp_path / "st/modules.json").read_text())
    modules[1]["path"] = ".hidden/pooling"
    (tmp_path / "st/modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match="is hidden"):
        read_source(tmp_path / "st")


def say(file: Path, **settings: object) -> None:
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(content | settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"transformers_weights": "adapter_model.bin"},
        {"transformers_weights": "elsewhere.safetensors.index.json"},
        {"configuration_files": ["config.4.0.0.json"]},
    ],
    ids=["pickle", "index", "config"],
)
def test_other_files_than_those_that_were_checked_are_refused(folder, tmp_path, settings) -> None:
    torch.save({"embeddings.LayerNorm.bias": Bomb(tmp_path / "mark")}, folder / "adapter_model.bin")
    say(folder / "config.json", **settings)
    with pytest.raises(ExportError, match=f"other files .{min(settings)}"):
        read_source(folder)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("key", ["vocab_file", "tokenizer_file", "fast_tokenizer_files"])
def test_a_tokenizer_from_elsewhere_is_refused(folder, tmp_path, key) -> None:
    (tmp_path / "secrets.txt").write_text("root:x:0\n[UNK]\n[PAD]\n")
    (tmp_path / "tokenizer.4.0.json").write_bytes((folder / "tokenizer.json").read_bytes())
    named = ["../tokenizer.4.0.json"] if key.endswith("s") else str(tmp_path / "secrets.txt")
    say(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", **{key: named})
    with pytest.raises(ExportError, match=f"other files .{key}"):
        read_source(folder)


def test_an_old_path_of_special_tokens_is_ignored(checkpoint, folder) -> None:
    # Most models on the Hub say so.
    say(
        folder / "tokenizer_config.json",
        special_tokens_map_file="/home/somebody/.cache/abc",
        vocab_file=None,
    )
    tokenizer_json = read_source(folder).tokenizer.to_str()
    assert tokenizer_json == read_source(checkpoint("bert")).tokenizer.to_str()


def index(folder: Path, part: str) -> None:
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, part)})
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("part-2.safetensors", r"part-2\.safetensors is missing"),
        ("../part-1.safetensors", "leads out of it"),
        ("part-1.bin", "not safetensors"),
    ],
)
def test_weights_in_parts_are_all_there_and_safe(folder, part, message) -> None:
    index(folder, part)
    with pytest.raises(ExportError, match=message):
        read_source(folder)


def test_weights_in_parts_are_read(checkpoint, folder) -> None:
    index(folder, "part-1.safetensors")
    assert read_source(folder).sha256() == read_source(checkpoint("bert")).sha256()


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_JSON_BYTES", r"config\.json has 0 MB; at most 0 are read"),
        ("MAX_TOKENIZER_BYTES", r"\.json has 0 MB"),
        ("MAX_WEIGHT_BYTES", "GB of weights; a graph holds 2 GiB"),
        ("_MAX_ENTRIES", "holds more than 2 files"),
    ],
)
def test_sizes_have_limits(folder, monkeypatch: pytest.MonkeyPatch, limit, message) -> None:
    monkeypatch.setattr(checkpoint_files, limit, 2)
    with pytest.raises(ExportError, match=message):
        read_source(folder)


@pytest.mark.parametrize("name", ["tf_model.h5", "adapter_model.safetensors"])
def test_weights_of_another_kind_are_named(folder, name) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ExportError, match=f"no weights: {name} .*format"):
        read_source(folder)


def test_a_fit_needs_the_same_trust(folder) -> None:
    pickled(folder)
    with pytest.raises(ExportError, match="--allow-pickle"):
        fit("standardise", folder, make_texts(60))


# --- more than the files hold ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_hidden_layers", 3000), ("num_hidden_layers", 1 << 40), ("hidden_size", 1 << 20),
     ("intermediate_size", 1 << 24), ("vocab_size", 1 << 33), ("max_position_embeddings", 1 << 33)],
)  # fmt: skip
def test_a_configuration_that_asks_for_more_than_there_is_is_refused(
    folder, tmp_path, name: str, value: int
) -> None:
    config = json.loads((folder / "config.json").read_text()) | {name: value}
    (folder / "config.json").write_text(json.dumps(config))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExportError, match=r"for [0-9,]+ (layers|weights)"):
        read_source(folder)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 300 << 20


@pytest.mark.parametrize("pickle_allowed", [False, True])
def test_an_adapter_is_refused_by_name(folder, tmp_path, pickle_allowed: bool) -> None:
    """It names another directory's weights, which may be a pickle."""
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    pickled(other, {"x": Bomb(tmp_path / "mark")})
    adapter = {"base_model_name_or_path": str(other), "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(ExportError, match=r"is a PEFT adapter .*merge"):
        read_source(folder, trust=Trust(pickle=pickle_allowed))
    assert not (tmp_path / "mark").exists()


def test_a_shipped_name_is_not_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests are offline: to ask the hub would be an error.
    assert read_source("mini").name == "checkpoint"  # the repository has its checkpoint
    monkeypatch.setattr(load, "__file__", "/nowhere/a/b/c.py")
    with pytest.raises(ExportError, match=r"mini .*ships as a bundle"):
        read_source("mini")
