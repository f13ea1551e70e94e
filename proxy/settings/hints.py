"""The hints that a session adds to a broker's reply text, where a setting or a right would help. Pure.

They stand here, and not in the session, because its files do not name groups.
"""

TO_CONSUME_FROM_A_RING = (
    b"; it is a hash exchange: to consume from it as a group, name it in ringproxy's setting groups"
)
"""For a client that takes a hash exchange for a queue."""

TO_PUBLISH_TO_A_RING = b"; ringproxy sends ring publishes straight on: grant write on "
"""For a client whose user may not publish where the ring leads; the pattern of names follows."""
