//go:build !ceph

package main

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

const cephLinked = false

func (e *cephEngine) open(context.Context, *csiServer) error {
	return errs.Errorf(errs.Unsupported, "this program is built without a Ceph client")
}
