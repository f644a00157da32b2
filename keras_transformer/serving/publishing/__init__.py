"""Writes a SavedModel, checks it in another process, and publishes it atomically."""
