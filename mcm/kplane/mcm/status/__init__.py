"""Reports of instances: the status of registrations, and Events."""
