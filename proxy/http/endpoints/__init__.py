"""Each endpoint of the HTTP listener that takes messages or says where they would go, and their description."""
