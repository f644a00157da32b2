"""Scripts that compare what was written with the foreign library; they import nothing of ours."""
