"""Recorded outputs of other people's reference code, and the tool that compares ours with them."""
