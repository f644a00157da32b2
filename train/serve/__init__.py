"""Serves SavedModels over TensorFlow Serving's REST API."""
