"""All clusters of a manager, and the part of them that belongs to one provider."""
