"""`flowvec serve`: models and collections over HTTP, for the clients that there are.

It needs the extra [serve].
"""

from flowvec.server.app import App, create_app
from flowvec.server.settings import Settings

__all__ = ["App", "Settings", "create_app"]
