"""Tables, figures and the page: what a run wrote, made visible."""
