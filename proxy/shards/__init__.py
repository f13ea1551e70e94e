"""`ring-proxy topology`: exchanges and their shards from a file, planned, applied, watched, exported and retired."""
