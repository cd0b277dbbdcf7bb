"""Codes of a collection's vectors, with which a scan finds the nearest rows."""
