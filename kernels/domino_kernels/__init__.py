"""Operators shared by the draft and the verify engine, one op a file; imports nothing of ours."""
