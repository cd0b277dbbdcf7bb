"""Reads static embedders: sentence-transformers' StaticEmbedding and model2vec's directories.

Both are a tokenizer and a table with a vector for each token; a text's vector is the mean of its
tokens' vectors. They differ in what counts, and a directory is computed as by the library that
wrote it:

    sentence-transformers   every token counts; a text may have any length
    model2vec               unknown tokens do not count; a text is cut at 512 tokens, and before
                            that at 512 times the median length of a token in characters

Special tokens are not added. NumPy reads the table; torch is only needed for a pickle or a Dense
module.
"""

from flowvec_export.sources.static.kinds import is_static, may_be_static
from flowvec_export.sources.static.reading import read_static
from flowvec_export.sources.static.source import StaticSource

__all__ = ["StaticSource", "is_static", "may_be_static", "read_static"]
