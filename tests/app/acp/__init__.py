"""The editor front end."""
