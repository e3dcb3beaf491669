"""Add-ons: what the control planes of a class have inside, besides what kplane itself needs."""
