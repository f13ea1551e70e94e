"""The admission of HTTP requests: by token, by what is under way already, and by the web page that sends it."""
