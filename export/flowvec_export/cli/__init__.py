"""The commands `flowvec export`, `fit` and `bundle`."""
