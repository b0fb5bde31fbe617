// Package nvme connects this machine to NVMe over Fabrics targets, through
// /dev/nvme-fabrics and sysfs (drivers/nvme/host of the kernel). It needs no
// nvme-cli.
//
// Connect, Delete and Flush block while the target does not answer, and no
// signal ends them: a caller with a deadline runs them in the background.
package nvme

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/kmod"
)

// Kernel is a kernel with NVMe over Fabrics. Its fields are replaced in tests.
type Kernel struct {
	Sys, Dev string // mount points of sysfs and devtmpfs
}

// Host returns this machine's kernel.
func Host() *Kernel { return &Kernel{Sys: "/sys", Dev: "/dev"} }

func (k *Kernel) class(elements ...string) string {
	return filepath.Join(append([]string{k.Sys, "class/nvme"}, elements...)...)
}

func (k *Kernel) fabrics() string { return filepath.Join(k.Dev, "nvme-fabrics") }

// ready loads the transport's module if the kernel has it. The module of
// another transport can have made the device.
func (k *Kernel) ready(ctx context.Context, transport string) error {
	module := "nvme-" + transport
	loaded := func() bool {
		_, device := os.Stat(k.fabrics())
		_, driver := os.Stat(filepath.Join(k.Sys, "module", strings.ReplaceAll(module, "-", "_")))
		return device == nil && driver == nil
	}
	if loaded() {
		return nil
	}
	cause := kmod.Load(ctx, module)
	if _, err := os.Stat(k.fabrics()); err == nil {
		return nil // built in, without parameters: the kernel refuses unknown transports
	} else if cause == nil {
		cause = err
	}
	return errs.Errorf(errs.Unsupported, "this kernel has no NVMe over Fabrics, and the module %s cannot be loaded (%w): install the kernel's package with that module on this node, or run `modprobe %[1]s`", module, cause)
}

// options returns the names of the options that this kernel knows: a read
// without a write lists them (nvmf_dev_show). Nil: it is older than 5.17 and
// does not list them.
func (k *Kernel) options() (map[string]bool, error) {
	text, err := os.ReadFile(k.fabrics())
	if errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for word := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		name, _, _ := strings.Cut(word, "=")
		known[name] = true
	}
	return known, nil
}

// request writes a line to /dev/nvme-fabrics and reads the answer from the same
// descriptor. The error does not have the line, which can hold a key.
func (k *Kernel) request(ctx context.Context, line string) (answer string, err error) {
	answer, err = kernelcall.Request(ctx, k.fabrics(), line)
	return strings.TrimSpace(answer), err
}
