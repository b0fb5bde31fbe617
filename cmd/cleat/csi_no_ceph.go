//go:build !ceph

package main

import (
	"context"

	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

const cephLinked = false

// open is not called: complete refuses the controller service.
func (*cephCluster) open(context.Context, *driver.Process) (volume.Backend, error) {
	return volume.Backend{}, errs.Errorf(errs.Unsupported, "this program is built without a Ceph client")
}
