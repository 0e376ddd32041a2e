"""The server side: which replies are used, where the student starts, and on which samples and how it learns from teachers."""
