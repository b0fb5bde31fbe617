package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// driverProcess is a process of cleat on the node, as the kernel and its own status
// tell of it.
type driverProcess struct {
	name     string // of the driver
	argument string // by which it differs from others of that name
	state    string // directory of what it remembers, on the node
	socket   string // empty: not on the node
}

// driverProcesses are those of the releases.
func driverProcesses() []driverProcess {
	plugin := func(name string) string { return filepath.Join("/var/lib/kubelet/plugins", name, "csi.sock") }
	return []driverProcess{
		{"csi.cleat.dev", "--per-node", "/var/lib/cleat/csi.cleat.dev/state", plugin("csi.cleat.dev")},
		{"single.cleat.dev", "--services=node", "/var/lib/cleat/single.cleat.dev/node-state", plugin("single.cleat.dev")},
		{"single.cleat.dev", "--services=controller", "/var/lib/cleat/single.cleat.dev/controller-state", ""},
	}
}

// pids are those of the driver's processes; there should be one.
func (d driverProcess) pids() ([]int, error) {
	return processes(with("cleat", "csi", "--driver-name="+d.name, d.argument))
}

func (d driverProcess) pid() (int, error) {
	all, err := d.pids()
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("driver %s %s has processes %v, want one", d.name, d.argument, all)
	}
	if err != nil {
		return 0, err
	}
	return all[0], nil
}

// ready asks the driver itself, as cleat csi status does; the process must not
// be the one that had the id not.
func (d driverProcess) ready(ctx context.Context, not int) error {
	pid, err := d.pid()
	if err != nil {
		return err
	}
	if pid == not {
		return fmt.Errorf("driver %s %s is still process %d", d.name, d.argument, pid)
	}
	var s struct {
		Ready  bool
		Checks map[string]string
	}
	if err := server.Ask(ctx, filepath.Join(d.state, "status.sock"), "/readyz", &s); err != nil {
		return err
	}
	if !s.Ready {
		return fmt.Errorf("driver %s %s is not ready: %v", d.name, d.argument, s.Checks)
	}
	return nil
}

// serves returns the process that answers at the driver's socket, 0 when
// nothing does.
func (d driverProcess) serves() int {
	c, err := net.Dial("unix", d.socket)
	if err != nil {
		return 0
	}
	defer c.Close()
	peer, err := unixsock.PeerCredentials(c)
	if err != nil {
		return 0
	}
	return int(peer.PID)
}

// allReady waits until every driver and sidecar of the releases does its work,
// and no driver is the process of old.
func (s *space) allReady(old map[driverProcess]int) {
	s.Helper()
	for _, d := range driverProcesses() {
		s.until("driver "+d.name+" "+d.argument, func(ctx context.Context) error { return d.ready(ctx, old[d]) })
	}
	for _, r := range releases {
		s.until("the pods of release "+r.name, func(ctx context.Context) error { return podsReady(ctx, r.name) })
	}
}

// observation is what a watch saw of a driver while it was exchanged.
type observation struct {
	driverProcess
	most    int           // processes at once
	served  []int         // processes that answered, one after the other; 0: none
	silence time.Duration // the longest time in which none did
}

// watch looks at a driver every few milliseconds until the returned function is
// called.
func (d driverProcess) watch() (end func() (observation, error)) {
	stop, done := make(chan struct{}), make(chan struct{})
	seen := observation{driverProcess: d}
	var failed error
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var silent time.Time
		for {
			all, err := d.pids()
			failed = errors.Join(failed, err)
			seen.most = max(seen.most, len(all))
			if d.socket != "" {
				now := d.serves()
				if len(seen.served) == 0 || seen.served[len(seen.served)-1] != now {
					seen.served = append(seen.served, now)
				}
				switch {
				case now != 0 && !silent.IsZero():
					seen.silence, silent = max(seen.silence, time.Since(silent)), time.Time{}
				case now == 0 && silent.IsZero():
					silent = time.Now()
				}
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	return func() (observation, error) {
		close(stop)
		<-done
		return seen, failed
	}
}

// oneAtATime says whether the old process and the new one were there one after
// the other.
func (c observation) oneAtATime() error {
	if c.most > 1 {
		return fmt.Errorf("driver %s %s had %d processes at once", c.name, c.argument, c.most)
	}
	answered := slices.DeleteFunc(slices.Clone(c.served), func(pid int) bool { return pid == 0 })
	if c.socket != "" && len(slices.Compact(answered)) != 2 {
		return fmt.Errorf("driver %s %s: processes %v answered in turn at its socket, want an old and a new one", c.name, c.argument, c.served)
	}
	return nil
}

// killAll kills processes of the node without asking them.
func killAll(all []int) error {
	var failed []error
	for _, pid := range all {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
