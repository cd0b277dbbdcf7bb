"""One command that runs flowvec on an NVIDIA GPU: correctness and speed, in a few minutes.

    python -m flowvec_bench.gpu --wheels WHEELS --out REPORT

Each step runs in a process of its own with a time limit, and writes its rows at once, so a step
that fails or hangs costs only itself. The same command continues an interrupted run.
"""
