package inventory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/uevent"
)

// WatchConfig has the event sources. The zero value watches this machine.
type WatchConfig struct {
	Devices func(context.Context, func(uevent.Event)) error   // nil: uevent.Watch
	Links   func(context.Context, func(netlinks.Event)) error // nil: netlinks.Watch
	Pause   time.Duration                                     // initial backoff after a failure; 0: 1 s
	Warn    func(error)                                       // called with the reason when changes can be missed; nil: ignored. Not called concurrently
}

// maxBackoff bounds the backoff, as a multiple of the initial backoff.
const maxBackoff = 32

// Watch calls kick after each event that can change a Snapshot, and when a
// source starts to be watched, for earlier changes. It returns the context's
// cause; failures are reported to Warn and retried. Creating many functions
// calls kick as many times: the caller debounces. kick must return at once, and
// can be called by two goroutines concurrently.
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
		if err := uevent.Deaf(); err != nil {
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

// persist restarts the watch after each failure, with exponential backoff that
// an event resets.
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
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// subsystems are the uevent subsystems of devices in a Snapshot.
var subsystems = []string{
	"auxiliary", "infiniband", "infiniband_mad", "infiniband_verbs", "iommu", "net", "pci", "uio", "vdpa", "vfio", "vfio-dev", "vhost-vdpa",
}

// eventConcerns reports whether an event can change a Snapshot. Uevents of
// virtual network devices are ignored: pods create many, and link events cover
// them.
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

// ignoredLinkKinds are kinds of links without a lower network device. Pods and
// virtual machines create and remove them all the time.
var ignoredLinkKinds = []string{"dummy", "ifb", "tun", "veth"}

// linkConcerns reports whether a link event can change a Snapshot.
func linkConcerns(e netlinks.Event) bool {
	return e.Lost || e.DefaultRoute || e.Link != nil && !slices.Contains(ignoredLinkKinds, e.Link.Kind)
}
