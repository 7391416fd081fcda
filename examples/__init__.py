"""Targets to sweep from a checkout. Not shipped in the wheel."""
