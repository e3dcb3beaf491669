"""Certificate authorities, keys and credentials of control planes: creates, issues, reads and rotates them."""
