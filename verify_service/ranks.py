"""The ranks of a verify group, as every service of several processes has them."""

from serving.ranks import ALONE, Ranks, join, own_device, place

__all__ = ["ALONE", "Ranks", "join", "own_device", "place"]
