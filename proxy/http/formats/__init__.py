"""The conversion of a request's bytes into messages, and of outcomes into the JSON of answers."""
