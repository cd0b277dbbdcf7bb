"""Bulk encoding: millions of texts from files to vectors, at constant memory, in jobs that resume.

from flowvec.bulk import encode_files

summary = encode_files("mini", ["articles/*.jsonl"], "vectors", text_field="body", id_field="url")
"""

from flowvec.bulk.checking import FolderCheck, verify_folder
from flowvec.bulk.estimate import Estimate, estimate_files
from flowvec.bulk.files import BulkSummary, encode_files
from flowvec.bulk.on_ray import RayWorkers
from flowvec.bulk.shards import BulkPrecision, OutFormat
from flowvec.bulk.window import DeadLetter
from flowvec.bulk.work import BulkProgress
from flowvec.errors import BulkError

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
    "verify_folder",
]
