"""Post-train small language models into long-horizon tool-using agents (STAR and ARPO)."""

__version__ = "0.1.0"
