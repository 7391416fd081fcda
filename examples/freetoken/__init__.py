"""FreeToken, a whole engine from PyPI, as a target."""
