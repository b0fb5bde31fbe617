// Package krbd maps RBD images of Ceph clusters as block devices of the kernel,
// through /sys/bus/rbd (Documentation/ABI/testing/sysfs-bus-rbd of the kernel).
//
// Map, Unmap and Refresh block while the cluster does not answer, and end with
// the answer alone: a caller with a deadline runs them in the background.
package krbd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/kmod"
)

// Kernel is a kernel with RBD. Its fields are replaced in tests.
type Kernel struct {
	Sys, Dev string // mount points of sysfs and devtmpfs
	// Write writes to a file of sysfs, with a key that the kernel can find
	// during the write.
	Write func(ctx context.Context, path, text string, key kernelcall.Key) error
	// Load loads the RBD module.
	Load func(ctx context.Context) error
}

// Host returns this machine's kernel.
func Host() *Kernel {
	return &Kernel{Sys: "/sys", Dev: "/dev", Write: kernelcall.Write, Load: func(ctx context.Context) error { return kmod.Load(ctx, "rbd") }}
}

func (k *Kernel) bus(elements ...string) string {
	return filepath.Join(append([]string{k.Sys, "bus/rbd"}, elements...)...)
}

// ready loads the module if the kernel has it.
func (k *Kernel) ready(ctx context.Context) error {
	_, err := os.Stat(k.bus())
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cause := k.Load(ctx)
	if _, err = os.Stat(k.bus()); err == nil {
		return nil
	}
	if cause == nil {
		cause = err
	}
	return errs.Errorf(errs.Unsupported, "this kernel has no RBD driver, and the module rbd cannot be loaded (%w): install the kernel's package with the module rbd on this node, or run `modprobe rbd`", cause)
}
