"""Where a publish goes, made ready for the hot loop as bytes and integers, and what is counted of it."""
