"""The clusters that a manager serves, and the engagement of each."""
