"""From the bytes of a request to messages, and from outcomes to the JSON of answers."""
