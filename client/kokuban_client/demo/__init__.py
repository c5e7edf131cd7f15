"""`kokuban demo`: a supervisor and its agents review real code on one board, race, crash, and prove the result."""
