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

// WatchConfig says what to listen to. Its zero value is this machine.
type WatchConfig struct {
	Devices func(context.Context, func(uevent.Event)) error   // nil: uevent.Watch
	Links   func(context.Context, func(netlinks.Event)) error // nil: netlinks.Watch
	Pause   time.Duration                                     // before listening again after a failure, at first; 0: 1 s
	Warn    func(error)                                       // why changes may go unseen; nil: nobody. One call at a time
}

// mostPauses is how much longer than the first pause those after many failures are.
const mostPauses = 32

// Watch calls kick after each event that may change a Snapshot, and as soon as
// it listens to either source: what was before that it did not hear. It returns the
// context's cause when that ends; what fails meanwhile it tries again, and warns
// of. Making many functions kicks as many times: it is for the caller to wait
// until it is quiet. kick must return at once, and may be called by two at a time.
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
			warn(fmt.Errorf("some changes of functions are not heard: %w", err))
		}
	}
	if c.Links == nil {
		c.Links = netlinks.Watch
	}
	var done sync.WaitGroup
	done.Go(func() {
		persist(ctx, c.Pause, warn, func(heard func()) error {
			return c.Devices(ctx, func(e uevent.Event) {
				heard()
				if eventConcerns(e) {
					kick()
				}
			})
		})
	})
	done.Go(func() {
		persist(ctx, c.Pause, warn, func(heard func()) error {
			return c.Links(ctx, func(e netlinks.Event) {
				heard()
				if linkConcerns(e) {
					kick()
				}
			})
		})
	})
	done.Wait()
	return context.Cause(ctx)
}

// persist listens again whenever that fails, with pauses that grow while
// nothing at all is heard.
func persist(ctx context.Context, pause time.Duration, warn func(error), listen func(heard func()) error) {
	for next := pause; ; next = min(2*next, mostPauses*pause) {
		err := listen(func() { next = pause })
		if ctx.Err() != nil {
			return
		}
		warn(fmt.Errorf("changes of functions are not heard for %v: %w", next, err))
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// subsystems are those whose devices a Snapshot tells of.
var subsystems = []string{
	"auxiliary", "infiniband", "infiniband_mad", "infiniband_verbs", "iommu", "net", "pci", "uio", "vdpa", "vfio", "vfio-dev", "vhost-vdpa",
}

// eventConcerns tells an event that may change a Snapshot. Network devices that hang
// on no hardware do so by their links alone; each pod makes some.
func eventConcerns(e uevent.Event) bool {
	switch {
	case e.Action == uevent.Lost:
		return true
	case e.Subsystem == "net":
		return !strings.HasPrefix(e.DevPath, "/devices/virtual/")
	case e.Subsystem == "misc": // rdma_cm is one
		return strings.HasPrefix(e.Values["DEVNAME"], "infiniband/")
	default:
		return slices.Contains(subsystems, e.Subsystem)
	}
}

// loose are kinds of links that no network device lies under: what pods and
// virtual machines have, which come and go all the time.
var ignoredLinkKinds = []string{"dummy", "ifb", "tun", "veth"}

// linkConcerns tells an event that may change a Snapshot.
func linkConcerns(e netlinks.Event) bool {
	return e.Lost || e.DefaultRoute || e.Link != nil && !slices.Contains(ignoredLinkKinds, e.Link.Kind)
}
