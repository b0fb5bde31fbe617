//go:build !ceph

package main

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

const cephLinked = false

// open is not called: complete refuses the controller service.
func (*cephCluster) open(context.Context, *csiServer) error {
	return errs.Errorf(errs.Unsupported, "this program is built without a Ceph client")
}
