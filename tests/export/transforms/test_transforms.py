"""The laws of every transform, randomized and fitted, over even and odd dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from flowvec.errors import DivergedError, ExportError, InputValueError
from flowvec_export.assembly.tracing import module_to_onnx
from flowvec_export.fitting.flow import FlowTraining, fit_flow
from flowvec_export.transforms import (
    NULL,
    PRESETS,
    AllButTheTop,
    BetaGammaWhitening,
    Compose,
    Dense,
    Flow,
    FlowShape,
    Identity,
    Moments,
    Rotation,
    SoftZCA,
    Standardise,
    Transform,
    Whitening,
    build_transform,
)
from flowvec_export.transforms.folded_flow import FoldedFlow

DIMS = [7, 16, 33]
ROWS = 1500


def skewed_vectors(dim: int, rows: int = ROWS, seed: int = 0) -> np.ndarray:
    """Correlated, skewed vectors whose mean holds most of their energy, as an encoder's do."""
    rng = np.random.default_rng(dim)
    left, right = (np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(2))
    mean = rng.normal(scale=4, size=dim)
    hidden = np.random.default_rng(seed).normal(size=(rows, dim))
    hidden = hidden + 0.5 * np.roll(hidden, 1, axis=1) ** 2
    return (hidden @ (left * np.geomspace(1, 0.2, dim) @ right) + mean).astype(np.float32)


def randomized(flow: Flow, data: np.ndarray) -> Flow:
    """A flow whose parameters all differ from their initial values, its couplings included."""
    generator = torch.Generator().manual_seed(3)
    flow.initialize(torch.from_numpy(data))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))
    return flow.eval()


SHAPES = {
    "released": PRESETS["released"],
    "paper": PRESETS["paper"],
    "wide": FlowShape(3, 3, 48),
    "one level, even depth": FlowShape(1, 4, 16),
    "two levels, even depth": FlowShape(2, 2, 16),
    "affine": FlowShape(2, 3, 24, "affine"),
    "affine, random": FlowShape(2, 3, 24, "affine", "random"),
}


def flow_of(dim: int, shape: FlowShape, data: np.ndarray | None = None) -> Flow:
    torch.manual_seed(1)  # the couplings' initial weights, independent of other tests
    levels = min(shape.levels, 2) if dim < 8 else shape.levels
    changed = FlowShape(levels, shape.depth, shape.width, shape.coupling, shape.permutation)
    return randomized(Flow(dim, changed), skewed_vectors(dim) if data is None else data)


def dense(dim: int, *residual: Tensor) -> Dense:
    torch.manual_seed(dim)
    weight = torch.randn(dim, dim) / dim**0.5 + torch.eye(dim)
    return Dense(weight, torch.randn(dim), "identity", *residual)


def turned(dim: int) -> Rotation:
    rotation = Rotation.fit(Moments.of(skewed_vectors(dim)), learned=True)
    with torch.no_grad():
        assert rotation.skew is not None
        rotation.skew.copy_(0.1 * torch.randn(dim, dim))
    return rotation


def moments(dim: int) -> Moments:
    return Moments.of(skewed_vectors(dim))


Builder = Callable[[int], Transform]
INVERTIBLE: dict[str, Builder] = {
    "identity": Identity,
    "dense": dense,
    "dense, residual": lambda d: dense(d, torch.empty(0)),
    "dense, projected": lambda d: dense(d, torch.randn(d, d) / d**0.5),
    "standardise": lambda d: Standardise.fit(moments(d)),
    "whitening": lambda d: Whitening.fit(moments(d)),
    "soft zca": lambda d: SoftZCA.fit(moments(d), 0.05),
    "beta gamma": lambda d: BetaGammaWhitening.fit(moments(d), 0.8, 0.6),
    "rotation": lambda d: Rotation.fit(moments(d)),
    "rotation, learned": turned,
    "rotation, flow": lambda d: rotation_then_flow(d),
    "flow, whitening": lambda d: flow_then_whitening(d, None),
    "rotation, soft zca": lambda d: Compose([turned(d), SoftZCA.fit(moments(d), 0.1)]),
    "nested": lambda d: Compose([Compose([dense(d), Identity(d)]), flow_then_whitening(d, None)]),
    **{f"flow, {name}": lambda d, s=shape: flow_of(d, s) for name, shape in SHAPES.items()},
}
OTHERS: dict[str, Builder] = {
    "dense, tanh": lambda d: Dense(torch.randn(d, d), torch.randn(d), "tanh"),
    "dense, narrow": lambda d: Dense(torch.randn(d - 2, d), None),
    "all but the top": lambda d: AllButTheTop.fit(moments(d), 2),
    "whitening, k": lambda d: Whitening.fit(moments(d), d // 2),
    "soft zca, null": lambda d: SoftZCA.fit(Moments.of(with_null(d)), 0.0),
    "beta gamma, k": lambda d: BetaGammaWhitening.fit(moments(d), 1.0, 0.5, d - 1),
    "flow, whitening, k": lambda d: flow_then_whitening(d, d // 2),
}


def rotation_then_flow(dim: int) -> Compose:
    rotation = turned(dim)
    with torch.no_grad():
        data = rotation(torch.from_numpy(skewed_vectors(dim))).numpy()
    return Compose([rotation, flow_of(dim, SHAPES["released"], data)])


def flow_then_whitening(dim: int, k: int | None) -> Compose:
    flow = flow_of(dim, SHAPES["affine"])
    with torch.no_grad():
        latent = flow(torch.from_numpy(skewed_vectors(dim))).numpy()
    return Compose([flow, Whitening.fit(Moments.of(latent), k)])


def with_null(dim: int, rows: int = ROWS) -> np.ndarray:
    """Vectors on a hyperplane, as LayerNorm makes them, but for float32 rounding."""
    data = skewed_vectors(dim, rows).astype(np.float64)
    normal = np.random.default_rng(1).normal(size=dim)
    normal /= np.linalg.norm(normal)
    data -= np.outer((data - data.mean(0)) @ normal, normal)
    return data.astype(np.float32)


ALL = INVERTIBLE | OTHERS


@pytest.fixture(params=DIMS)
def dim(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INVERTIBLE)
def test_to_observed_undoes_to_latent(name: str, dim: int) -> None:
    transform = INVERTIBLE[name](dim).double()
    assert transform.invertible
    u = torch.from_numpy(skewed_vectors(dim, 50, seed=9)).double()
    z, _ = transform.to_latent(u)
    torch.testing.assert_close(transform.to_observed(z), u, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", INVERTIBLE)
def test_log_det_is_the_jacobians(name: str, dim: int) -> None:
    transform = INVERTIBLE[name](dim).double()
    u = torch.from_numpy(skewed_vectors(dim, 3, seed=9)).double()
    _, log_det = transform.to_latent(u)
    assert log_det.shape == (3,)
    for row, expected in zip(u, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: transform.to_latent(x[None])[0][0], row
        )
        jacobian_log_det = torch.linalg.slogdet(jacobian)[1]
        torch.testing.assert_close(jacobian_log_det, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OTHERS)
def test_a_map_that_loses_something_has_neither_inverse_nor_density(name: str, dim: int) -> None:
    transform = OTHERS[name](dim)
    z, log_det = transform.to_latent(torch.from_numpy(skewed_vectors(dim, 4)))
    assert not transform.invertible
    assert torch.isfinite(z).all()
    assert torch.isnan(log_det).all()
    with pytest.raises(ExportError, match="cannot be inverted"):
        transform.to_observed(z)


@pytest.mark.parametrize("name", ALL)
def test_transforms_state_their_sizes(name: str, dim: int) -> None:
    transform = ALL[name](dim)
    u = torch.from_numpy(skewed_vectors(dim, 4))
    assert (transform.in_dim, transform(u).shape) == (dim, (4, transform.out_dim))
    torch.testing.assert_close(transform(u), transform.to_latent(u)[0], rtol=0, atol=0)
    assert str(dim) in transform.describe()


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float((np.abs(actual - expected).max(1) / np.linalg.norm(expected, axis=1)).max())


@pytest.mark.parametrize("name", ALL)
def test_folded_is_unfolded(name: str, dim: int) -> None:
    transform = ALL[name](dim)
    u = torch.from_numpy(skewed_vectors(dim, 200, seed=5))
    with torch.no_grad():
        folded, expected = transform.fold()(u).numpy(), transform(u).numpy()
        assert relative_error(folded, expected) <= 1e-5
        # In float64 the two are one map: the folding is exact, and the rest is rounding.
        exact = transform.double()
        z = exact(u.double()).numpy()
        assert relative_error(exact.fold()(u.double()).numpy(), z) <= 1e-10


# The identity alone has no node; pairs of steps are in "nested" and "flow, whitening, k". The two
# halves of an odd number differ: what a flow computes of 7 numbers, it does of 16.
OF_7 = [(n, 7) for n in ALL if n not in ("identity", "rotation, flow", "flow, whitening")]
OF_16 = [(n, 16) for n, _ in OF_7 if "flow" not in n and n != "nested"]


@pytest.mark.exports(but=8)
@pytest.mark.parametrize(("name", "dim"), OF_7 + OF_16)
def test_onnx_computes_what_torch_does(name: str, dim: int) -> None:
    transform = ALL[name](dim).eval()
    session = as_session(transform.fold(), dim)
    for rows in (1, 2, 37):
        u = skewed_vectors(dim, rows, seed=6)
        (output,) = session.run(None, {"u": u})
        with torch.no_grad():
            expected = transform(torch.from_numpy(u)).numpy()
        assert relative_error(output, expected) <= 1e-5


def as_session(module: nn.Module, dim: int) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        module_to_onnx(module, dim).SerializeToString(), providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("name", ALL)
def test_a_config_builds_it_again(name: str, dim: int) -> None:
    transform = ALL[name](dim)
    again = build_transform(transform.kind, transform.config())
    again.load_state_dict(transform.state_dict())
    u = torch.from_numpy(skewed_vectors(dim, 5))
    with torch.no_grad():
        torch.testing.assert_close(again(u), transform(u), rtol=0, atol=0)
    assert again.describe() == transform.describe()
    assert again.invertible == transform.invertible


# --- the flow -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_every_coupling_of_a_randomized_flow_moves_its_half(name: str, dim: int) -> None:
    assert min(moves(flow_of(dim, SHAPES[name]), skewed_vectors(dim))) >= 0.1


def moves(flow: Flow, data: np.ndarray) -> list[float]:
    """How far each coupling moves what it changes, relative to its norm."""
    shares: list[float] = []

    def watch(module: nn.Module, inputs: tuple[Tensor], output: tuple[Tensor, object]) -> None:
        before, after = inputs[0][:, module.first :], output[0][:, module.first :]
        shares.append(float(((after - before).norm(dim=1) / before.norm(dim=1)).mean()))

    hooks = [step.coupling.register_forward_hook(watch) for _, step in flow.steps()]
    with torch.no_grad():
        flow(torch.from_numpy(data))
    for hook in hooks:
        hook.remove()
    return shares


@pytest.fixture(scope="module")
def fitted() -> tuple[Flow, list[float], np.ndarray]:
    data = skewed_vectors(16, 3000)
    flow = Flow(16, FlowShape(2, 3, 48))
    history = fit_flow(flow, data[:2500], data[2500:], FlowTraining(epochs=12, batch_size=128))
    return flow, [e.held_out for e in history], data


def test_fitting_lowers_the_held_out_negative_log_likelihood(fitted) -> None:
    flow, held_out, data = fitted
    assert min(held_out) < held_out[0] - 0.05
    # The kept weights are those of the best epoch.
    kept = flow.bits_per_dim(torch.from_numpy(data[2500:])).mean()
    assert float(kept) == pytest.approx(min(held_out), abs=1e-5)


def test_a_fitted_flow_obeys_the_laws_with_couplings_that_work(fitted) -> None:
    flow, _, data = fitted
    u = torch.from_numpy(data[:300])
    assert min(moves(flow, data[:300])) >= 0.1
    assert relative_error(flow.fold()(u).numpy(), flow(u).numpy()) <= 1e-5
    (output,) = as_session(flow.fold(), 16).run(None, {"u": data[:300]})
    assert relative_error(output, flow(u).numpy()) <= 1e-5
    exact = Flow.from_config(flow.config())
    exact.load_state_dict(flow.state_dict())
    exact.double()
    z, _ = exact.to_latent(u.double())
    torch.testing.assert_close(exact.to_observed(z), u.double(), rtol=1e-10, atol=1e-10)


def test_bits_per_dim_are_minus_log2_of_the_density() -> None:
    # A flow that is the identity scores a standard normal.
    flow = Flow(4, FlowShape(1, 2, 8)).double()
    u = torch.randn(7, 4, dtype=torch.float64)
    density = torch.distributions.Normal(0.0, 1.0).log_prob(u).sum(1)
    torch.testing.assert_close(flow.bits_per_dim(u), -density / math.log(2) / 4)
    # Halving the unit of length costs a bit in each dimension.
    wide, narrow = (
        randomized(Flow(8, FlowShape(1, 2, 8)), skewed_vectors(8) * s) for s in (2.0, 1.0)
    )
    data = torch.from_numpy(skewed_vectors(8, 400, seed=4))
    narrow.load_state_dict(wide.state_dict())
    with torch.no_grad():
        next(narrow.steps())[1].norm.bias.div_(2)
        next(narrow.steps())[1].norm.logs.add_(math.log(2) / 3)
    difference = wide.bits_per_dim(2 * data) - narrow.bits_per_dim(data)
    torch.testing.assert_close(difference, torch.ones(400), rtol=1e-3, atol=1e-3)


def test_initialization_gives_every_actnorm_mean_0_and_deviation_1() -> None:
    flow, data = Flow(16, PRESETS["released"]), skewed_vectors(16)
    flow.initialize(torch.from_numpy(data))
    outputs: list[Tensor] = []
    for _, step in flow.steps():
        step.norm.register_forward_hook(lambda _m, _i, out: outputs.append(out))
        step.coupling.network.up_norm.register_forward_hook(lambda _m, _i, o: outputs.append(o))
    with torch.no_grad():
        flow(torch.from_numpy(data))
    assert len(outputs) == 18
    for out in outputs:
        torch.testing.assert_close(out.mean(0), torch.zeros(out.shape[1]), rtol=0, atol=1e-3)
        torch.testing.assert_close(out.std(0), torch.ones(out.shape[1]), rtol=1e-2, atol=1e-2)


def test_the_latent_keeps_the_order_of_the_input() -> None:
    # A fresh flow is a chain of ActNorms: z must be the standardized u, dimension by dimension.
    for shape in SHAPES.values():
        flow, data = Flow(16, shape), skewed_vectors(16)
        flow.initialize(torch.from_numpy(data))
        with torch.no_grad():
            z = flow(torch.from_numpy(data)).numpy()
        expected = (data - data.mean(0)) / data.std(0, ddof=1)
        np.testing.assert_allclose(z, expected, atol=2e-3)


@pytest.mark.parametrize("dim", [33, 257, 383])
def test_an_odd_width_is_cut_into_slices_too(dim: int) -> None:
    flow = Flow(dim, PRESETS["released"])
    networks = [step.coupling.network for _, step in flow.steps()]
    counted = sum(n.up.weight.numel() + n.across.weight.numel() + n.down.weight.numel()
              for n in networks)  # fmt: skip
    assert flow.fold().multiplications == counted


def test_folded_shapes_and_cost_are_those_of_small_networks() -> None:
    flow = Flow(768, PRESETS["released"])
    folded = flow.fold()
    assert isinstance(folded, FoldedFlow)
    assert folded.multiplications == 138_240
    nodes = [node.op_type for node in module_to_onnx(folded, 768).graph.node]
    products = [n for n in nodes if n in ("Gemm", "MatMul")]
    assert len(products) == 27  # nine networks of three
    assert not {"Gather", "GatherND", "ScatterND", "Transpose", "Exp", "Tanh"} & set(nodes)
    assert len(nodes) <= 65


def test_the_first_thing_that_a_folded_transform_does_is_to_subtract_the_mean() -> None:
    data = skewed_vectors(16)
    flow = randomized(Flow(16, FlowShape(2, 3, 16)), data)
    for transform in (flow, Whitening.fit(Moments.of(data)), turned(16)):
        graph = module_to_onnx(transform.fold(), 16).graph
        (first,) = [node for node in graph.node if "u" in node.input]
        assert first.op_type in ("Add", "Sub")


def test_training_with_one_seed_is_one_flow() -> None:
    data = skewed_vectors(8, 1300)
    settings = FlowTraining(epochs=2, seed=5)
    flows = []
    for _ in range(2):
        flow = Flow(8, FlowShape(2, 2, 16))
        fit_flow(flow, data[:1200], data[1200:], settings)
        flows.append(flow.state_dict())
    assert all(torch.equal(flows[0][name], flows[1][name]) for name in flows[0])


def test_a_learned_rotation_is_learned() -> None:
    data = skewed_vectors(8, 3000)
    rotation = Rotation.fit(Moments.of(data[:2500]), learned=True)
    flow = Flow(8, FlowShape(2, 3, 24))
    fit_flow(flow, data[:2500], data[2500:], FlowTraining(epochs=4), rotation)
    assert rotation.skew is not None
    assert rotation.skew.abs().max() > 1e-3
    turn = rotation.fold().matrix
    torch.testing.assert_close(turn.T @ turn, torch.eye(8), rtol=0, atol=1e-5)


def test_training_that_no_longer_helps_stops_early() -> None:
    data = np.random.default_rng(0).normal(size=(1200, 8)).astype(np.float32)
    history = fit_flow(
        Flow(8, FlowShape(1, 2, 64)), data[:1000], data[1000:],
        FlowTraining(epochs=200, patience=2, batch_size=50, noise=0.0),
    )  # fmt: skip
    assert len(history) < 100


def test_a_flow_that_diverges_is_an_error() -> None:
    data = skewed_vectors(8, 1300)
    with pytest.raises(DivergedError, match="diverged"):
        fit_flow(
            Flow(8, FlowShape(1, 2, 8)), data[:1200], data[1200:],
            FlowTraining(epochs=3, learning_rate=1e6, clip=1e9),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("dim", "shape", "part"),
    [
        (7, FlowShape(3, 3, 8), "too few for 3 levels"),
        (8, FlowShape(0, 3, 8), "at least 1"),
        (8, FlowShape(1, 3, 8, "cubic"), "coupling must be one of additive, affine"),  # type: ignore[arg-type]
        (8, FlowShape(1, 3, 8, "additive", "none"), "permutation must be one of reversal, random"),  # type: ignore[arg-type]
    ],
)
def test_a_shape_that_does_not_fit_is_an_error(dim: int, shape: FlowShape, part: str) -> None:
    with pytest.raises(InputValueError, match=part):
        Flow(dim, shape)


@pytest.mark.parametrize(
    "change",
    [{"epochs": 0}, {"learning_rate": 0.0}, {"noise": -1.0}, {"clip": 0.0}, {"patience": 0}],
)
def test_a_training_setting_out_of_range_is_an_error(change: dict) -> None:
    with pytest.raises(InputValueError):
        fit_flow(
            Flow(8, FlowShape(1, 2, 8)),
            skewed_vectors(8),
            skewed_vectors(8),
            FlowTraining(**change),
        )


# --- whitening and its kin ------------------------------------------------------------------------


@pytest.mark.parametrize("k", [None, 5])
def test_whitened_vectors_have_the_identity_as_covariance(dim: int, k: int | None) -> None:
    data = skewed_vectors(dim)
    whitening = Whitening.fit(Moments.of(data), k)
    z = whitening(torch.from_numpy(data)).double().numpy()
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(z, rowvar=False), np.eye(z.shape[1]), atol=1e-3)


def test_soft_zca_has_the_softened_variances_along_the_old_directions(dim: int) -> None:
    data, eps = skewed_vectors(dim), 0.2
    values, basis = np.linalg.eigh(np.cov(data.astype(np.float64), rowvar=False))
    z = SoftZCA.fit(Moments.of(data), eps)(torch.from_numpy(data)).double().numpy()
    expected = basis @ np.diag(values / (values + eps * values.mean())) @ basis.T
    np.testing.assert_allclose(np.cov(z, rowvar=False), expected, atol=1e-4)


def test_beta_and_gamma_lead_from_the_raw_vectors_to_whitening() -> None:
    data = skewed_vectors(12)
    moments, u = Moments.of(data), torch.from_numpy(data)
    full = BetaGammaWhitening.fit(moments, 1.0, 1.0)(u)
    torch.testing.assert_close(full, Whitening.fit(moments)(u), rtol=1e-5, atol=1e-5)
    plain = BetaGammaWhitening.fit(moments, 0.0, 0.0)(u)
    torch.testing.assert_close(plain @ plain.T, u @ u.T, rtol=1e-4, atol=1e-2)


def test_standardized_dimensions_have_mean_0_and_deviation_1(dim: int) -> None:
    data = skewed_vectors(dim)
    z = Standardise.fit(Moments.of(data))(torch.from_numpy(data)).numpy()
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(z.std(0, ddof=1), 1, atol=1e-4)


def test_all_but_the_top_leaves_nothing_along_the_top_and_all_of_the_rest(dim: int) -> None:
    data = skewed_vectors(dim)
    _, _, directions = np.linalg.svd(data - data.mean(0, dtype=np.float64), full_matrices=False)
    z = AllButTheTop.fit(Moments.of(data), 3)(torch.from_numpy(data)).double().numpy()
    np.testing.assert_allclose(z @ directions[:3].T, 0, atol=2e-4)
    rest = (data - data.mean(0, dtype=np.float64)) @ directions[3:].T
    np.testing.assert_allclose(z @ directions[3:].T, rest, atol=2e-4)


def test_a_pca_turns_without_stretching(dim: int) -> None:
    data = skewed_vectors(dim)
    z = Rotation.fit(Moments.of(data))(torch.from_numpy(data)).double().numpy()
    covariance = np.cov(z, rowvar=False)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=1e-3)
    centred = data - data.mean(0)
    np.testing.assert_allclose(
        np.linalg.norm(z, axis=1), np.linalg.norm(centred, axis=1), rtol=1e-4
    )


# --- data that break a naive fit ------------------------------------------------------------------

FITS: dict[str, Callable[[Moments], Transform]] = {
    "whitening": Whitening.fit,
    "soft zca": SoftZCA.fit,
    "soft zca, eps 0": lambda m: SoftZCA.fit(m, 0.0),
    "soft zca, eps 1e-5": lambda m: SoftZCA.fit(m, 1e-5),
    "soft zca, eps 1e-3": lambda m: SoftZCA.fit(m, 1e-3),
    "beta gamma": lambda m: BetaGammaWhitening.fit(m, 1.0, 1.0),
    "standardise": Standardise.fit,
    "all but the top": AllButTheTop.fit,
    "rotation": Rotation.fit,
}


def bfloat16(data: np.ndarray) -> np.ndarray:
    return torch.from_numpy(data).bfloat16().float().numpy()


@pytest.mark.parametrize("name", FITS)
def test_the_null_direction_is_not_blown_up(name: str) -> None:
    data = with_null(32, 4000)
    transform = FITS[name](Moments.of(data))
    exact = transform(torch.from_numpy(data)).numpy()
    # What a bfloat16 encoder would have given instead.
    rounded = transform(torch.from_numpy(bfloat16(data))).numpy()
    cosine = (exact * rounded).sum(1) / np.linalg.norm(exact, axis=1)
    cosine /= np.linalg.norm(rounded, axis=1)
    # What the rounding does to the kept directions remains.
    assert np.median(cosine) > 0.99
    assert np.isfinite(exact).all()


def test_a_null_direction_is_dropped_and_said() -> None:
    whitening = Whitening.fit(Moments.of(with_null(16)))
    assert whitening.out_dim == 15
    assert "16->15" in whitening.describe()
    with pytest.raises(InputValueError, match="15 directions"):
        Whitening.fit(Moments.of(with_null(16)), 16)


@pytest.mark.exports
def test_noise_keeps_a_flow_from_blowing_the_null_direction_up() -> None:
    data = with_null(16, 6000)
    flow = Flow(16, FlowShape(1, 4, 64))
    fit_flow(flow, data[:5500], data[5500:], FlowTraining(epochs=10, batch_size=64))
    with torch.no_grad():
        jacobian = torch.autograd.functional.jacobian(
            lambda x: flow(x[None])[0], torch.from_numpy(data[0])
        )
        stretch = float(torch.linalg.svdvals(jacobian)[0])
    deviation = float(np.sqrt(data.var(axis=0).mean()))
    assert stretch < 3 / (FlowTraining().noise * deviation)


@pytest.mark.parametrize("name", FITS)
def test_constant_dimensions_stay_small(name: str) -> None:
    data = skewed_vectors(8)
    data[:, 3] = 1234.5
    transform = FITS[name](Moments.of(data))
    shaken = data.copy()
    shaken[:, 3] += 1e-3  # as another machine's rounding
    z, z_shaken = (transform(torch.from_numpy(d)).numpy() for d in (data, shaken))
    assert np.isfinite(z).all()
    assert np.abs(z - z_shaken).max() < 0.05 * np.linalg.norm(z, axis=1).mean()


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_an_error_that_names_the_row(name: str, bad: float) -> None:
    data = skewed_vectors(8)
    data[77, 2] = bad
    with pytest.raises(InputValueError, match="NaN or infinity in vector 77"):
        FITS[name](Moments.of(data))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_flow_refuses_nan_and_infinity(bad: float) -> None:
    data = skewed_vectors(8)
    data[5, 5] = bad
    with pytest.raises(InputValueError, match="NaN or infinity"):
        Flow(8, FlowShape(1, 2, 8)).initialize(torch.from_numpy(data))
    for pair in ((data, skewed_vectors(8)), (skewed_vectors(8), data)):
        with pytest.raises(InputValueError, match="NaN or infinity"):
            fit_flow(Flow(8, FlowShape(1, 2, 8)), *pair, FlowTraining())


def test_a_flow_refuses_to_be_initialized_from_a_few_rows() -> None:
    with pytest.raises(InputValueError, match="at least 1000 vectors"):
        Flow(8, FlowShape(1, 2, 8)).initialize(torch.zeros(999, 8))


def test_a_flow_refuses_vectors_that_are_equal_but_for_rounding() -> None:
    data = np.full((1200, 8), 0.5, np.float32)
    data += np.random.default_rng(0).normal(scale=3e-8, size=data.shape).astype(np.float32)
    with pytest.raises(InputValueError, match="all vectors are equal"):
        Flow(8, FlowShape(1, 2, 8)).initialize(torch.from_numpy(data))


def test_neighbours_are_folded_into_one() -> None:
    pair = Compose([turned(16), SoftZCA.fit(moments(16), 0.1)])
    products = [n.op_type for n in module_to_onnx(pair.fold(), 16).graph.node]
    assert sorted(products) == ["Gemm", "Sub"]
    narrowing = Compose(
        [Rotation.fit(moments(16), 6), Whitening.fit(Moments.of(skewed_vectors(6)), 4)]
    )
    products = [n.op_type for n in module_to_onnx(narrowing.fold(), 16).graph.node]
    assert sorted(products) == ["Gemm", "Sub"]
    nested = Compose([Compose([flow_of(16, SHAPES["released"])]), Whitening.fit(moments(16), 4)])
    nodes = [n.op_type for n in module_to_onnx(nested.fold(), 16).graph.node]
    assert nodes.count("Mul") == 0  # the flow's scale is in the whitening's matrix


def test_a_flow_on_constant_dimensions_stays_finite() -> None:
    data = skewed_vectors(8)
    data[:, 3] = 1234.5
    flow = Flow(8, FlowShape(1, 2, 8))
    flow.initialize(torch.from_numpy(data))
    shaken = data.copy()
    shaken[:, 3] += 1e-3
    z, z_shaken = (flow(torch.from_numpy(d)) for d in (data, shaken))
    assert torch.isfinite(z).all()
    assert (z - z_shaken).abs().max() < 0.05


@pytest.mark.parametrize("name", FITS)
def test_fewer_rows_than_dimensions_keep_as_many_directions_as_there_are(name: str) -> None:
    data = skewed_vectors(64, 20)
    transform = FITS[name](Moments.of(data))
    others = transform(torch.from_numpy(skewed_vectors(64, 50, seed=8))).numpy()
    assert np.isfinite(others).all()
    if name in ("whitening", "beta gamma", "rotation"):
        assert transform.out_dim == 19


@pytest.mark.parametrize("name", FITS)
def test_equal_vectors_are_an_error(name: str) -> None:
    same = np.full((50, 8), 3.25, np.float32)
    last_bit = same.copy()
    last_bit[::2] = np.nextafter(same[::2], np.float32(9))
    for data in (same, last_bit, np.zeros_like(same)):
        with pytest.raises(InputValueError, match="all vectors are equal"):
            FITS[name](Moments.of(data))
    with pytest.raises(InputValueError):
        FITS[name](Moments.of(skewed_vectors(8, 1)))


@pytest.mark.parametrize(
    "call",
    [
        lambda m: Whitening.fit(m, 0),
        lambda m: Whitening.fit(m, 9),
        lambda m: SoftZCA.fit(m, -0.1),
        lambda m: SoftZCA.fit(m, math.nan),
        lambda m: SoftZCA.fit(m, math.inf),
        lambda m: BetaGammaWhitening.fit(m, 1.5, 1.0),
        lambda m: BetaGammaWhitening.fit(m, 1.0, -0.5),
        lambda m: AllButTheTop.fit(m, 8),
        lambda m: AllButTheTop.fit(m, 0),
        lambda m: Rotation.fit(m, 9),
        lambda m: Compose([]),
        lambda m: Compose([Whitening.fit(m, 4), Standardise.fit(m)]),
    ],
)
def test_an_argument_out_of_range_is_an_error(call) -> None:
    with pytest.raises(InputValueError):
        call(Moments.of(skewed_vectors(8)))


# --- moments --------------------------------------------------------------------------------------


def test_streamed_moments_are_numpys_in_float64() -> None:
    data = skewed_vectors(24, 5000) + np.float32(1000)  # a mean that would cancel in float32
    streamed = Moments.of(data[i : i + 333] for i in range(0, 5000, 333))
    exact = data.astype(np.float64)
    assert streamed.count == 5000
    np.testing.assert_allclose(streamed.mean, exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(streamed.covariance, np.cov(exact, rowvar=False), rtol=1e-8)
    whole = Moments.of(data)
    np.testing.assert_allclose(whole.covariance, streamed.covariance, rtol=1e-10)


def test_a_spectrum_is_ordered_and_has_fixed_signs() -> None:
    spectrum = Moments.of(skewed_vectors(16)).spectrum()
    assert (np.diff(spectrum.values) <= 0).all()
    largest = np.abs(spectrum.basis).argmax(axis=0)
    assert (spectrum.basis[largest, np.arange(16)] > 0).all()
    assert spectrum.rank == 16
    null = Moments.of(with_null(16)).spectrum()
    assert null.rank == 15
    assert null.values[-1] < NULL * null.values[0]


def test_vectors_of_another_shape_are_an_error() -> None:
    moments = Moments(8)
    for wrong in (np.zeros((4, 7)), np.zeros(8)):
        with pytest.raises(InputValueError, match="must be"):
            moments.update(wrong)
    with pytest.raises(InputValueError, match="no vectors"):
        Moments.of(np.zeros((0, 8)))
