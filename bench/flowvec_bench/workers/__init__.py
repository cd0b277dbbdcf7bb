"""Programs that run in a peer's environment, where flowvec is not installed."""
