"""Every public function of the export, called with wrong types and values, raises flowvec's errors
alone.

The transforms' constructors are left out: they are torch modules, whose errors are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flowvec_export import (
    FitSettings,
    FlowShape,
    FlowTraining,
    Moments,
    Trust,
    Whitening,
    export,
    export_bundle,
    fit,
    fit_like_the_paper,
    load_transform,
    read_source,
    save_transform,
)
from tests.odd_arguments import Called, check

OPTIMUM = Path(__file__).resolve().parents[1] / "data" / "optimum" / "bert"
TEXTS = [f"the cat sleeps {i} times" for i in range(40)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some odd values are paths that can be written; not into the directory of the tests."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.exports
def test_wrong_arguments_of_exports(tmp_path: Path) -> None:
    names = iter(range(10**9))

    def made(
        source: Any = OPTIMUM, pooling: Any = None, transform: Any = None, normalize: Any = None,
        max_length: Any = None, encoder_only: Any = False, name: Any = None, prompts: Any = None,
        default_prompt_name: Any = None, calibration: Any = (), sts: Any = (),
    ) -> None:  # fmt: skip
        export(
            source, tmp_path / f"b{next(names)}", pooling=pooling, transform=transform,
            normalize=normalize, max_length=max_length, encoder_only=encoder_only, name=name,
            prompts=prompts, default_prompt_name=default_prompt_name, calibration=calibration,
            sts=sts,
        )  # fmt: skip

    def early(  # these are looked at before the source, which is not there
        out: Any = "b", weights: Any = "float32", variants: Any = (), overwrite: Any = False,
        trust_remote_code: Any = False, allow_pickle: Any = False, on_step: Any = None,
    ) -> None:  # fmt: skip
        export(
            tmp_path / "nowhere", out, weights=weights, variants=variants, overwrite=overwrite,
            trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, on_step=on_step,
        )  # fmt: skip

    bundle = export(OPTIMUM, tmp_path / "bundle", calibration=()).path

    def laid_out(
        bundle: Any = bundle, out: Any = None, layout: Any = "tei", overwrite: Any = False
    ) -> None:
        target = tmp_path / f"l{next(names)}" if out is None else out
        export_bundle(bundle, target, layout, overwrite=overwrite)

    check({
        "export": Called(made, {}),
        "export, early": Called(early, {}),
        "export_bundle": Called(laid_out, {}),
        "read_source": Called(read_source, {"source": OPTIMUM}),
    })  # fmt: skip


def test_wrong_arguments_of_fits(tmp_path: Path) -> None:
    def fitted(
        method: Any = "whitening", source: Any = tmp_path / "nowhere", texts: Any = TEXTS,
        corpus: Any = "c", pooling: Any = None, max_length: Any = None, encoder_only: Any = False,
        trust: Any = None, settings: Any = None, show_progress_bar: Any = None, on_step: Any = None,
        on_epoch: Any = None,
    ) -> None:  # fmt: skip
        fit(
            method, source, texts, corpus=corpus, pooling=pooling, max_length=max_length,
            encoder_only=encoder_only, trust=trust, settings=settings,
            show_progress_bar=show_progress_bar, on_step=on_step, on_epoch=on_epoch,
        )  # fmt: skip

    def like_the_paper(
        source: Any = tmp_path / "nowhere", texts: Any = TEXTS, corpus: Any = "c",
        pooling: Any = None, encoder_only: Any = False, trust: Any = None, seed: Any = 0,
        on_step: Any = None, on_batch: Any = None,
    ) -> None:  # fmt: skip
        fit_like_the_paper(
            source, texts, corpus=corpus, pooling=pooling, encoder_only=encoder_only, trust=trust,
            seed=seed, on_step=on_step, on_batch=on_batch,
        )  # fmt: skip

    def with_settings(of: type[Any], name: str, method: str) -> Callable[..., None]:
        """A setting, as a function of its value."""

        def use(value: Any) -> None:
            transform = of(**{name: value})
            known = {FlowShape: "shape", FlowTraining: "training"}
            settings = transform if of is FitSettings else FitSettings(**{known[of]: transform})
            fit(method, tmp_path / "nowhere", ["a cat"] * 2000, settings=settings)

        return use

    called = {
        "fit": Called(fitted, {}),
        "fit_like_the_paper": Called(like_the_paper, {}),
        "Trust": Called(
            lambda remote_code=False, pickle=False: read_source(
                OPTIMUM, trust=Trust(remote_code, pickle)
            ),
            {},
        ),
    }
    for of in (FitSettings, FlowShape, FlowTraining):
        for name in of.__dataclass_fields__:
            for method in ("flow", "whitening", "beta-gamma", "soft-zca", "all-but-the-top"):
                called[f"{of.__name__}.{name} of {method}"] = Called(
                    with_settings(of, name, method), {}
                )
    check(called)


def test_wrong_arguments_of_transforms(tmp_path: Path) -> None:
    whitening = Whitening.fit(Moments.of(torch.randn(40, 6).numpy()))
    save_transform(whitening, None, tmp_path / "w.safetensors")
    check({
        "save_transform": Called(
            save_transform,
            {"transform": whitening, "recipe": None, "path": tmp_path / "v.safetensors"},
        ),
        "load_transform": Called(load_transform, {}),
    })  # fmt: skip
