"""One cluster: how it is reached, what is known of it, and the engagement during which it is worked on."""
