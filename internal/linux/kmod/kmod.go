// Package kmod loads modules of the kernel.
package kmod

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
)

const (
	bound     = 20 * time.Second
	maxOutput = 400 // of modprobe, in an error
)

// Load loads a module and those that it depends on, with the modprobe of kmod or
// busybox. A loaded one is no error. The name does not begin with "-".
func Load(ctx context.Context, module string) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for _, path := range []string{"/sbin/modprobe", "/usr/sbin/modprobe"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, path, "--", module)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s: it must see /lib/modules of the running kernel; or have the machine load the module at boot (/etc/modules-load.d)",
				path, module, err, errs.Clip(strings.TrimSpace(string(out)), maxOutput))
		}
		return nil
	}
	return fmt.Errorf("load the module %s: /sbin and /usr/sbin have no modprobe: have the machine load it at boot (/etc/modules-load.d)", module)
}
