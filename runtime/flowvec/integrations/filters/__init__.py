"""Filters of other libraries as filters of a Collection. None of the libraries is imported.

>>> from_langchain({"$or": [{"year": {"$gte": 2024}}, {"lang": "en"}]})
{'or': [{'year': {'>=': 2024}}, {'lang': 'en'}]}
>>> from_chroma({"author.name": {"$ne": "Ada"}}, {"$contains": "cat"})
{'and': [{'author\\\\.name': {'!=': 'Ada'}}, {'$text': {'contains': 'cat'}}]}
>>> from_haystack({"field": "meta.year", "operator": ">", "value": 2024})
{'year': {'>': 2024}}
"""

from __future__ import annotations

from flowvec.integrations.filters.dollar import from_chroma, from_langchain
from flowvec.integrations.filters.haystack import from_haystack
from flowvec.integrations.filters.llama_index import from_llama_index

__all__ = ["from_chroma", "from_haystack", "from_langchain", "from_llama_index"]
