"""Streams: batches, reading in a loop, moving."""
