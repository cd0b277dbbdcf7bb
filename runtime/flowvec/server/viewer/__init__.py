"""The viewer of the OpenAPI document: `/docs`."""

from flowvec.server.viewer.files import file, page

__all__ = ["file", "page"]
