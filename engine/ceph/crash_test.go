//go:build ceph

package ceph

func crashChild() bool { return false }
