"""Worlds: queries, tools, environments and their judge."""
