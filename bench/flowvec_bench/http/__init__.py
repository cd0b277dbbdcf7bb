"""Load tests of HTTP servers: flowvec's own beside others."""
