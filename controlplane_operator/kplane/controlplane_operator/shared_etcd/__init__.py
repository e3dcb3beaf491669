"""The etcd that virtual control planes share: who administers it, and where its certificates come from."""
