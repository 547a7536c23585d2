"""What the agent can do to the user's files. Knows nothing of the engine or the application."""
