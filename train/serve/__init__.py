"""Serves SavedModels over TensorFlow Serving's REST API, on Ray Serve."""
