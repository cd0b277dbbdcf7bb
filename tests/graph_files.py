"""The header of graph files, which tests damage."""

from __future__ import annotations

import numpy as np

HEADER = np.dtype(
    [
        ("offset_level0", "<u8"),
        ("max_elements", "<u8"),
        ("count", "<u8"),
        ("element_bytes", "<u8"),
        ("label_offset", "<u8"),
        ("data_offset", "<u8"),
        ("max_level", "<i4"),
        ("entry_point", "<u4"),
        ("max_m", "<u8"),
        ("max_m0", "<u8"),
        ("m", "<u8"),
        ("mult", "<f8"),
        ("ef_construction", "<u8"),
    ]
)
