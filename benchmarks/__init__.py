"""Benchmark programs and their dated results; summary.json is what benchmarks.collect kept."""
