"""The demo corpus: generated English-German sentence pairs, so that no download is needed."""
