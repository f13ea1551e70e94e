"""Who may send requests to the HTTP listener, how many at once, and from which pages."""
