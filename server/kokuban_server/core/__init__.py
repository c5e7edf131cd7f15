"""The rules of the board: pure functions and values, no I/O, no clock, no randomness."""
