"""`ring-proxy group EXCHANGE redrive`: publishes the dead letters of a group again, through a sidecar."""
