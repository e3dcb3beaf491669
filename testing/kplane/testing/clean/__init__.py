"""Runs etcd and kube-apiserver, and resets them between tests, for the fixture `clean_api_server`."""
