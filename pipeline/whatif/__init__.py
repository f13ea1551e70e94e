"""What a proposed ring would move, and what each of its destinations would get."""
