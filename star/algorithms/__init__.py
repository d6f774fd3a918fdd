"""Algorithms: one small file each."""
