"""The ids that every tokenizer gives to what is no text."""

PAD_ID, UNKNOWN_ID, START_ID, END_ID = 0, 1, 2, 3
