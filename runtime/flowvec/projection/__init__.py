"""Collections to look at: rows as points on a map, and how evenly vectors fill their space."""

from flowvec.projection.collection_map import MAP_ROWS, MapFrame, map_frames
from flowvec.projection.space import Space, SpaceFrame, space_frames

__all__ = ["MAP_ROWS", "MapFrame", "Space", "SpaceFrame", "map_frames", "space_frames"]
