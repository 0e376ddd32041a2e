"""The server's side: whose reply is used, where the student starts, on what and how it learns from the teachers."""
