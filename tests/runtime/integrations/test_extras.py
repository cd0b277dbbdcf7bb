"""A module of flowvec.integrations needs its library, and nothing else needs that."""

from __future__ import annotations

# Of each module, the package that it is for.
LIBRARIES = {
    "chroma": "chromadb",
    "dspy": "dspy",
    "haystack": "haystack",
    "langchain": "langchain_core",
    "llama_index": "llama_index",
    "mteb": "mteb",
    "ray": "ray",
    "spark": "pyspark",
}


def test_a_missing_library_is_named_with_the_line_that_installs_it(python) -> None:
    code = f"""
import importlib, sys
libraries = {LIBRARIES!r}
import flowvec, flowvec.bulk, flowvec.cli.main
import flowvec.integrations.filters, flowvec.integrations.late
assert not set(libraries.values()) & set(sys.modules)
for module, library in libraries.items():
    sys.modules[library] = None
    try:
        importlib.import_module(f"flowvec.integrations.{{module}}")
    except flowvec.MissingDependencyError as error:
        assert library in str(error), error
        assert f"[{{module.replace('_', '-')}}]" in str(error), error
    else:
        raise AssertionError(module)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
