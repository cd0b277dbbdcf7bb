"""Bulk encoding: millions of texts from files to vectors, at constant memory, in jobs that resume.

>>> from flowvec.bulk import encode_files, verify_folder
>>> articles = '{"url": "/a", "body": "The cat sleeps."}\\n{"url": "/b", "body": "Stocks fell."}'
>>> size = Path("articles.jsonl").write_text(articles)
>>> summary = encode_files("mini", "articles.jsonl", "out", text_field="body", id_field="url")
>>> summary.rows, summary.dim, verify_folder("out").problems
(2, 384, ())
"""

from flowvec.bulk.encoding import encode_files
from flowvec.bulk.estimate import Estimate, estimate_files
from flowvec.bulk.merging import merge_shares
from flowvec.bulk.ray_workers import RayWorkers
from flowvec.bulk.runner import BulkProgress
from flowvec.bulk.shard_files import BulkPrecision, OutFormat
from flowvec.bulk.summary import BulkSummary
from flowvec.bulk.verify import FolderCheck, verify_folder
from flowvec.errors import BulkError
from flowvec.texts.window import DeadLetter

__all__ = [
    "BulkError",
    "BulkPrecision",
    "BulkProgress",
    "BulkSummary",
    "DeadLetter",
    "Estimate",
    "FolderCheck",
    "OutFormat",
    "RayWorkers",
    "encode_files",
    "estimate_files",
    "merge_shares",
    "verify_folder",
]
