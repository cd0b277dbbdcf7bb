"""The application of `flowvec serve` on Ray Serve: replicas on many machines, as many as it takes.

    python -m pip install -c constraints.txt ".[cpu,serve]" "ray[serve]"  # in a clone of flowvec
    MODEL=mini serve run examples.ray_serve:vectors

Each replica loads the model and has a queue of its own. Ray adds replicas while each has more than
`target_ongoing_requests` in progress, and removes them again. Its proxy answers all routes of
`docs/serve.md`, at http://127.0.0.1:8000.
"""

from __future__ import annotations

import os
from typing import Any

from ray import serve

from flowvec import Encoder
from flowvec.server import App, Settings, create_app

# Threads of a replica; Ray keeps that many cores for it.
CORES = int(os.environ.get("CORES_PER_REPLICA", "1"))


def build() -> App:
    """The application, which each replica builds for itself: its models cannot be sent."""
    name = os.environ.get("MODEL", "mini")
    encoder = Encoder.load(name, streams=CORES)
    app = create_app({name: encoder}, settings=Settings(timeout=60.0))
    for model in app.served.queues:
        model.warm_up()
    return app


@serve.deployment(
    ray_actor_options={"num_cpus": CORES},
    # A replica has its own bound in tokens and answers 429 above it, so it may take many at a time.
    max_ongoing_requests=256,
    autoscaling_config={
        "min_replicas": 1,
        "max_replicas": 8,
        "target_ongoing_requests": 32,
        "upscale_delay_s": 5.0,
        "downscale_delay_s": 60.0,
    },
    graceful_shutdown_timeout_s=30.0,
)
@serve.ingress(build)
class Vectors:
    """Replicas of the application."""


vectors: Any = Vectors.bind()
