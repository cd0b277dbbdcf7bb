"""flowvec's tests."""

import os

# Several workers share the cores. Threads of OpenMP wait for each other by spinning: with more of
# them than cores, a training took four times as long. What tests start inherits this.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
