"""The server's side: which replies are used, where the student starts, on what and how it learns from the teachers."""
