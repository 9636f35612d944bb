"""Commands about lanes."""
