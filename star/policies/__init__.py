"""Policies: anything that answers a conversation with the next turn."""
