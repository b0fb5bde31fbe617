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

// driverProcess identifies a cleat process on the node.
type driverProcess struct {
	name     string // of the driver
	argument string // distinguishes processes of the same driver
	state    string // state directory on the node
	socket   string // empty: no socket on the node
}

// driverProcesses returns the processes of the releases.
func driverProcesses() []driverProcess {
	plugin := func(name string) string { return filepath.Join("/var/lib/kubelet/plugins", name, "csi.sock") }
	return []driverProcess{
		{"csi.cleat.dev", "--per-node", "/var/lib/cleat/csi.cleat.dev/state", plugin("csi.cleat.dev")},
		{"single.cleat.dev", "--services=node", "/var/lib/cleat/single.cleat.dev/node-state", plugin("single.cleat.dev")},
		{"single.cleat.dev", "--services=controller", "/var/lib/cleat/single.cleat.dev/controller-state", ""},
	}
}

// pids returns the driver's processes; want one.
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

// ready queries the driver's status, like cleat csi status. The process id must
// differ from not.
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

// serves returns the process that answers at the driver's socket, or 0.
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

// allReady waits until all drivers and sidecars of the releases are ready, in
// processes other than old.
func (s *space) allReady(old map[driverProcess]int) {
	s.Helper()
	for _, d := range driverProcesses() {
		s.until("driver "+d.name+" "+d.argument, func(ctx context.Context) error { return d.ready(ctx, old[d]) })
	}
	for _, r := range releases {
		s.until("pods of release "+r.name, func(ctx context.Context) error { return podsReady(ctx, r.name) })
	}
}

// observation is the result of watching a driver during its replacement.
type observation struct {
	driverProcess
	most    int           // maximum number of concurrent processes
	served  []int         // processes that answered, in order; 0: none
	silence time.Duration // longest time without an answer
}

// watch polls a driver every few milliseconds until end is called.
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

// oneAtATime returns an error unless the new process started after the end of
// the old one.
func (c observation) oneAtATime() error {
	if c.most > 1 {
		return fmt.Errorf("driver %s %s had %d processes at once", c.name, c.argument, c.most)
	}
	answered := slices.DeleteFunc(slices.Clone(c.served), func(pid int) bool { return pid == 0 })
	if c.socket != "" && len(slices.Compact(answered)) != 2 {
		return fmt.Errorf("driver %s %s: processes %v answered in order, want one old and one new", c.name, c.argument, c.served)
	}
	return nil
}

// killAll kills processes of the node by SIGKILL.
func killAll(all []int) error {
	var failed []error
	for _, pid := range all {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
