"""Approximate nearest neighbours beside other libraries, on the same vectors."""
