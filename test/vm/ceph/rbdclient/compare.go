package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/rbd"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume/access"
)

// compare attaches an image and maps it without node/rbd, in turns, and returns
// the medians.
func compare(ctx context.Context, a *rbd.Attacher, l access.RBD, s cephtest.Site) (string, error) {
	const rounds = 11
	var attached, mapped []time.Duration
	for range rounds {
		begun := time.Now()
		at, err := a.Attach(ctx, node.Target{Locator: l}, node.Use{Block: true})
		if err != nil {
			return "", err
		}
		attached = append(attached, time.Since(begun))
		if err := at.File.Close(); err != nil {
			return "", err
		}
		if err := a.Detach(ctx, node.Target{Locator: l}); err != nil {
			return "", err
		}
		took, err := mapBare(l, s)
		if err != nil {
			return "", err
		}
		mapped = append(mapped, took)
	}
	slices.Sort(attached)
	slices.Sort(mapped)
	return fmt.Sprintf("attach %d ms, bare map %d ms", attached[rounds/2].Milliseconds(), mapped[rounds/2].Milliseconds()), nil
}

// mapBare maps the image as rbd map does, on a node without other devices, and
// unmaps it.
func mapBare(l access.RBD, s cephtest.Site) (time.Duration, error) {
	const bus = "/sys/bus/rbd/"
	var monitors []string
	for _, m := range l.Monitors {
		monitors = append(monitors, m.String())
	}
	line := strings.Join([]string{strings.Join(monitors, ","), "name=" + s.User + ",secret=" + s.Key + ",noshare", l.Pool, l.Image, "-"}, " ")
	begun := time.Now()
	if err := os.WriteFile(bus+"add_single_major", []byte(line), 0o200); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	devices, err := os.ReadDir(bus + "devices")
	if err != nil {
		return 0, err
	}
	if len(devices) != 1 {
		return 0, fmt.Errorf("%d devices are mapped, expected 1", len(devices))
	}
	return took, os.WriteFile(bus+"remove_single_major", []byte(devices[0].Name()), 0o200)
}
