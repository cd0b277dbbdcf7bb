"""Fits a flow by maximum likelihood, on vectors that were computed once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowvec.arguments import number, whole_number
from flowvec.errors import DivergedError, InputValueError
from flowvec_export.transforms import Flow, Rotation
from flowvec_export.transforms.flow import MIN_ROWS

__all__ = ["AdamWithoutCorrection", "Epoch", "FlowTraining", "fit_flow"]


@dataclass(frozen=True, slots=True)
class FlowTraining:
    """How a flow is trained.

        >>> settings = FitSettings(training=FlowTraining(epochs=1), shape=FlowShape(width=8))
        >>> history = fit("flow", "my-checkpoint", sentences, settings=settings).history
        >>> len(history)  # before the first epoch, and after it
        2

    Attributes:
        epochs: most passes over the vectors.
        batch_size: vectors per step.
        learning_rate: learning rate of AdamW; it falls to zero along a cosine over the epochs.
        weight_decay: weight decay of AdamW.
        noise: deviation of Gaussian noise that is added to the training vectors, in units of their
            root mean square deviation. No direction can be stretched by more than about its
            inverse, so that the null direction of an encoder does not become noise.
        patience: stop after this many epochs without a lower held-out figure.
        clip: largest norm of the gradient.
        seed: seed of initialization, order and noise.
    """

    epochs: int = 15
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    noise: float = 0.01
    patience: int = 3
    clip: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Raise InputValueError or InputTypeError for a setting that is not valid."""
        for name in ("epochs", "batch_size", "patience"):
            whole_number(name, getattr(self, name))
        for name in ("learning_rate", "clip", "noise", "weight_decay"):
            number(name, getattr(self, name))
        if not (0 < self.learning_rate < math.inf and self.clip > 0):
            raise InputValueError("learning_rate and clip must be above 0")
        if not (0 <= self.noise < math.inf and 0 <= self.weight_decay < math.inf):
            raise InputValueError("noise and weight_decay must not be negative")
        whole_number("seed", self.seed, 0)


@dataclass(frozen=True, slots=True)
class Epoch:
    """Bits per dimension after an epoch, without noise; epoch 0 is the initialized flow.

    Attributes:
        epoch: its number.
        train: over as many training vectors as are held out; for the released recipe the mean over
            the epoch, with dropout.
        held_out: over the held-out vectors.
    """

    epoch: int
    train: float
    held_out: float


def fit_flow(
    flow: Flow,
    train: npt.NDArray[np.float32],
    held_out: npt.NDArray[np.float32],
    settings: FlowTraining,
    rotation: Rotation | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> list[Epoch]:
    """Initialize a flow from data and fit it in place; the weights of the best epoch are kept.

    Args:
        flow: a new flow.
        train: float32 (rows, dim), at least 1,000 rows.
        held_out: float32 (rows, dim), never trained on; decides when to stop.
        settings: settings of the training.
        rotation: rotation before the flow; it is trained with the flow if it is `learned`.
        on_epoch: called after each epoch.

    Returns:
        One entry for the initialized flow, and one for each epoch.

    Raises:
        InputValueError: too few rows, NaN or infinity in them, or a setting out of range.
        DivergedError: the likelihood became NaN or infinite.
    """
    settings.check()
    if len(train) < MIN_ROWS or not len(held_out):
        raise InputValueError(
            f"a flow needs at least {MIN_ROWS} vectors to train on and one to measure on, but "
            f"there are {len(train)} and {len(held_out)}"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    data, unseen = torch.from_numpy(train), torch.from_numpy(held_out)
    if not (bool(torch.isfinite(data).all()) and bool(torch.isfinite(unseen).all())):
        raise InputValueError("NaN or infinity in the vectors")
    front = _Front(rotation)
    noise = settings.noise * float(data.var(dim=0).mean().sqrt())
    with torch.no_grad():
        _draw_weights(flow, generator)
        flow.initialize(front(data[: 20 * MIN_ROWS]))
    modules = nn.ModuleList([flow, *([rotation] if rotation is not None else [])])
    parameters = [p.requires_grad_(True) for p in modules.parameters()]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        betas=(0.9, 0.999),
        fused=True,
    )
    batches = math.ceil(len(data) / settings.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs * batches)

    seen = data[: len(unseen)]
    history = [Epoch(0, _mean_bits(flow, front, seen), _mean_bits(flow, front, unseen))]
    best, state = history[0], copy.deepcopy(modules.state_dict())
    for epoch in range(1, settings.epochs + 1):
        for chosen in torch.randperm(len(data), generator=generator).split(settings.batch_size):  # type: ignore[no-untyped-call]
            rows = data[chosen]
            rows = rows + noise * torch.randn(rows.shape, generator=generator)
            loss = flow.bits_per_dim(front(rows)).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimizer.step()
            schedule.step()
        bits = (_mean_bits(flow, front, rows) for rows in (seen, unseen))
        history.append(Epoch(epoch, *bits))
        if not math.isfinite(history[-1].held_out + history[-1].train):
            raise DivergedError(
                f"the flow diverged in epoch {epoch}; try a lower learning rate than "
                f"{settings.learning_rate:g}"
            )
        if on_epoch is not None:
            on_epoch(history[-1])
        if history[-1].held_out < best.held_out:
            best, state = history[-1], copy.deepcopy(modules.state_dict())
        elif epoch - best.epoch >= settings.patience:
            break
    modules.load_state_dict(state)
    for parameter in parameters:
        parameter.requires_grad_(False)
    flow.eval()
    return history


class _Front(nn.Module):
    """Applies the rotation before the flow, if there is one."""

    def __init__(self, rotation: Rotation | None) -> None:
        super().__init__()
        self.rotation = rotation

    def forward(self, u: Tensor) -> Tensor:
        return u if self.rotation is None else self.rotation(u)


@torch.no_grad()
def _draw_weights(flow: Flow, generator: torch.Generator) -> None:
    """Draw the couplings' weights again, from the training's own seed."""
    for _, step in flow.steps():
        for linear in (step.coupling.network.up, step.coupling.network.across):
            linear.weight.normal_(std=0.05, generator=generator)


@torch.no_grad()
def _mean_bits(flow: Flow, front: _Front, rows: Tensor) -> float:
    """Mean bits per dimension, without noise."""
    return float(torch.cat([flow.bits_per_dim(front(r)) for r in rows.split(4096)]).mean())  # type: ignore[no-untyped-call]


class AdamWithoutCorrection(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019) without bias correction, as BERT was trained.

    BERT-flow's released code uses it: its first steps are larger than with the correction.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step with the current gradients."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["first"] = torch.zeros_like(parameter)
                    state["second"] = torch.zeros_like(parameter)
                first, second = state["first"], state["second"]
                first.lerp_(parameter.grad, 1 - beta1)
                second.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                update = first / (second.sqrt() + group["eps"])
                update.add_(parameter, alpha=group["weight_decay"])
                parameter.sub_(update, alpha=group["lr"])
