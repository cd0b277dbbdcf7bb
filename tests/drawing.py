"""How many examples Hypothesis draws: few in the unit tier, all in the gate.

`--hypothesis-profile=full` draws the numbers that tests name, the default a fifth of them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

__all__ = ["examples", "register_profiles"]

_FULL = 100
_NOT_CHECKED = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)


def register_profiles() -> None:
    """Register the profiles, and load the quick one."""
    # The same examples on every machine, and no limit of time: a slow machine is not a failure.
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": _NOT_CHECKED}
    settings.register_profile("quick", max_examples=_FULL // 5, derandomize=True, **common)
    settings.register_profile("full", max_examples=_FULL, derandomize=True, **common)
    settings.register_profile("search", max_examples=_FULL, **common)
    settings.load_profile("quick")


def examples(number: int, **options: Any) -> settings:
    """Settings that draw this many examples in the full profile, and fewer in the quick one."""
    scaled = max(1, number * settings.default.max_examples // _FULL)
    return settings(max_examples=scaled, **options)
