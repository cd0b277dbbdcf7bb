"""Speed and memory of flowvec on this machine."""
