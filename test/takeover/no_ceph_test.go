//go:build !ceph

package takeover

// tags are those of the program under test.
const tags = "crashpoints"

// cephKinds needs a program with Ceph's libraries.
var cephKinds []kind

func startCeph(string) (stop func(), err error) { return func() {}, nil }
