"""The demo: the main job of the suite, from nothing to nothing, each step verified."""
