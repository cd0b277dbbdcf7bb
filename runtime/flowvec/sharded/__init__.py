"""Collections that are too large for one machine: built and searched in shards on Ray.

    out/shards.json      number of shards, their models and indexes
    out/shard-000 ...    one Collection each
    out/shard-000.job    journal and dead letters of the job that filled it

Every shard holds the rows of some blocks of the input, so it can be built without the other shards.
A search asks all shards and merges their answers by score. Below a URL, shards are objects, see
`flowvec.sharded.stored_shard`; machines that search download them into a cache of their own.
"""

from flowvec.sharded.building import index_shards
from flowvec.sharded.checking import ShardsCheck, verify_shards
from flowvec.sharded.manifest import is_sharded, shards_model
from flowvec.sharded.results import ShardedHits, ShardedRows
from flowvec.sharded.searcher import ShardedSearcher

__all__ = [
    "ShardedHits",
    "ShardedRows",
    "ShardedSearcher",
    "ShardsCheck",
    "index_shards",
    "is_sharded",
    "shards_model",
    "verify_shards",
]
