package inventory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/uevent"
)

// WatchConfig has the event sources; the zero value is this machine.
type WatchConfig struct {
	Devices func(context.Context, func(uevent.Event)) error
	Links   func(context.Context, func(netlinks.Event)) error
	Pause   time.Duration // initial backoff; 0: 1 s
	Warn    func(error)   // changes can be missed; not called concurrently
}

const maxBackoff = 32

// Watch calls kick after events that can change a Snapshot, and when a source
// is (re)started. It returns the context's cause; failures go to Warn and are
// retried. The caller debounces. kick must return at once; calls can be
// concurrent.
func Watch(ctx context.Context, c WatchConfig, kick func()) error {
	c.Pause = cmp.Or(c.Pause, time.Second)
	var one sync.Mutex
	warn := func(err error) {
		one.Lock()
		defer one.Unlock()
		if c.Warn != nil {
			c.Warn(err)
		}
	}
	if c.Devices == nil {
		c.Devices = uevent.Watch
		if err := uevent.CheckNamespace(); err != nil {
			warn(fmt.Errorf("some changes of functions are missed: %w", err))
		}
	}
	if c.Links == nil {
		c.Links = netlinks.Watch
	}
	var done sync.WaitGroup
	done.Go(func() {
		persist(ctx, c.Pause, warn, kick, func(received func(concerns bool)) error {
			return c.Devices(ctx, func(e uevent.Event) { received(eventConcerns(e)) })
		})
	})
	done.Go(func() {
		persist(ctx, c.Pause, warn, kick, func(received func(concerns bool)) error {
			return c.Links(ctx, func(e netlinks.Event) { received(linkConcerns(e)) })
		})
	})
	done.Wait()
	return context.Cause(ctx)
}

// persist restarts watch with exponential backoff, which an event resets.
func persist(ctx context.Context, pause time.Duration, warn func(error), kick func(), watch func(received func(concerns bool)) error) {
	for next := pause; ; next = min(2*next, maxBackoff*pause) {
		err := watch(func(concerns bool) {
			next = pause
			if concerns {
				kick()
			}
		})
		if ctx.Err() != nil {
			return
		}
		warn(fmt.Errorf("changes of functions are missed for %v: %w", next, err))
		if backoff.Sleep(ctx, next) != nil {
			return
		}
	}
}

var subsystems = []string{
	"auxiliary", "infiniband", "infiniband_mad", "infiniband_verbs", "iommu", "net", "pci", "uio", "vdpa", "vfio", "vfio-dev", "vhost-vdpa",
}

// Uevents of virtual network devices are ignored: pods create many, and link
// events cover them.
func eventConcerns(e uevent.Event) bool {
	switch {
	case e.Action == uevent.Lost:
		return true
	case e.Subsystem == "net":
		return !strings.HasPrefix(e.DevPath, "/devices/virtual/")
	case e.Subsystem == "misc": // such as rdma_cm
		return strings.HasPrefix(e.Values["DEVNAME"], "infiniband/")
	default:
		return slices.Contains(subsystems, e.Subsystem)
	}
}

// ignoredLinkKinds have no lower device. Pods and virtual machines create and
// remove them all the time.
var ignoredLinkKinds = []string{"dummy", "ifb", "tun", "veth"}

func linkConcerns(e netlinks.Event) bool {
	return e.Lost || e.DefaultRoute || e.Link != nil && !slices.Contains(ignoredLinkKinds, e.Link.Kind)
}
