"""The Python side of Tessera."""
