"""The routes of publishes, made ready for the hot loop as bytes and integers, and the counts of what became of them."""
