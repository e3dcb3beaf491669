"""What the operator keeps inside each control plane."""
