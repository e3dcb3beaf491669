"""All clusters of a manager, and the view of a provider on its clusters."""
