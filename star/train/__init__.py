"""The rooms that need torch."""
