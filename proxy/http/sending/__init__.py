"""From a message that came over HTTP to the broker, and from the answer of the broker to a receipt."""
