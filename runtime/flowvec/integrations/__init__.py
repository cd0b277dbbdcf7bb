"""flowvec in other libraries: one module for each, with an extra of the same name.

A module imports its library when it is imported itself, and nothing else here imports it.
"""
