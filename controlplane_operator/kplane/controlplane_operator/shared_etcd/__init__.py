"""The etcd that virtual control planes share: its access control, certificates and storage."""
