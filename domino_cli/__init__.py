"""`domino-serve`: the composition root. Starts, pulls, inspects and compares; imports lazily."""
