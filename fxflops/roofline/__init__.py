"""What a device can do at most, and how near each call came."""
