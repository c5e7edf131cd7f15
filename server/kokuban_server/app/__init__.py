"""The use cases: one for each thing a caller can ask."""
