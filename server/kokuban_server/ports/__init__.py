"""What the use cases need from the world, as protocols with contracts."""
