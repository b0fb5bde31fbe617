// Package kmod loads modules of the kernel.
package kmod

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
)

const bound = 20 * time.Second

// Load loads a module and those that it depends on. A loaded one is no error.
func Load(ctx context.Context, module string) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	out, err := exec.CommandContext(ctx, "modprobe", module).CombinedOutput()
	if err != nil {
		return fmt.Errorf("modprobe %s: %w: %s", module, err, errs.Clip(strings.TrimSpace(string(out)), 200))
	}
	return nil
}
