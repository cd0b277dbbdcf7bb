"""Objects below a URL: whole writes, conditional writes, leases, and retries.

`open_store` opens `s3://` with s3fs, and other schemes with their fsspec library.
"""

from flowvec.object_store.lease import Lease
from flowvec.object_store.opening import open_store
from flowvec.object_store.store import ConflictError, ObjectStore, StagedUpload, Upload

__all__ = ["ConflictError", "Lease", "ObjectStore", "StagedUpload", "Upload", "open_store"]
