"""Consumer groups: the decisions about which member of a group consumes which shard, apart from frames."""
