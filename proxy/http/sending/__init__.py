"""The sending of messages that came over HTTP to the broker, and the receipts made of the broker's answers."""
