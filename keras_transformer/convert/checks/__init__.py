"""Scripts that check what was written, with the foreign library; they import none of our code."""
