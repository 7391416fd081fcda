"""The story that jitwatch comes from, retold with the engine: one changed line each."""
