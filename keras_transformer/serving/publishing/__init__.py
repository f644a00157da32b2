"""How a served module is written, checked by another process, and published whole."""
