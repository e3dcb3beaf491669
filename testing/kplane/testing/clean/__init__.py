"""An API server that each test finds clean: etcd and kube-apiserver, reset between tests. See `clean_api_server`."""
