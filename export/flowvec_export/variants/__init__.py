"""Further graphs of a bundle: float16 and int8."""
