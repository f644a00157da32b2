"""Pictures: arrays in, matplotlib figures or an HTML page out."""
