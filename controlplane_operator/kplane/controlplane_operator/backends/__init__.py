"""The programs and the storage behind a control plane that kplane runs itself."""
