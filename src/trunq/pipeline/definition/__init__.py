"""A pipeline as data: what a definition may say, and what it needs."""
