"""The commands `flowvec bench`, `eval` and `compare`."""
