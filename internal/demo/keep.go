package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/csi/client"
)

const terminate = unix.SIGTERM

// markName is the file by which a directory of the demo is known.
const markName = "demo.json"

// mark is what that file holds.
type mark struct {
	Driver int  `json:"driver"` // process ids
	Host   int  `json:"host"`
	Plugin int  `json:"plugin,omitempty"` // of DPU devices
	Double int  `json:"double,omitempty"` // of SNAP
	Own    bool `json:"own"`              // the directory was made by the demo

	SRIOVPlugin int `json:"sriovPlugin,omitempty"`
	SRIOVDaemon int `json:"sriovDaemon,omitempty"`
	Node        int `json:"node,omitempty"` // its double
}

// note remembers who serves.
func (m *mark) note(what string, pid int) {
	switch what {
	case "host":
		m.Host = pid
	case "driver":
		m.Driver = pid
	case "DPU plugin":
		m.Plugin = pid
	case "SR-IOV plugin":
		m.SRIOVPlugin = pid
	case "SR-IOV daemon":
		m.SRIOVDaemon = pid
	case "double of a node":
		m.Node = pid
	default:
		m.Double = pid
	}
}

func (m mark) write(dir string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, markName), text, 0o600)
}

// Remove takes away what a walk with Keep left in a directory: it detaches the
// volumes, stops driver and host, and removes the pool with all that is in it.
func Remove(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	m, err := readMark(dir)
	if err != nil {
		return err
	}
	w := &walk{dir: dir, own: m.Own}
	ctx, cancel := context.WithTimeout(ctx, cleanBound)
	defer cancel()
	if isCleat(m.Driver, w.endpoint()) {
		if err := w.endDriver(ctx, m.Driver); err != nil {
			return err
		}
	}
	for _, p := range []struct {
		pid    int
		serves string
	}{
		{m.Host, w.hostEndpoint()}, {m.Plugin, w.pluginSocket()}, {m.Double, w.doubleSocket()},
		{m.SRIOVDaemon, w.nodeState()}, {m.SRIOVPlugin, w.controlSocket()}, {m.Node, w.nodeSocket()},
	} {
		if !isCleat(p.pid, p.serves) {
			continue
		}
		if err := endProcess(p.pid); err != nil {
			return err
		}
	}
	if err := sweep(ctx, dir); err != nil {
		return err
	}
	return removeFiles(dir, m.Own)
}

// endDriver detaches the volumes and ends the driver. One that ends already, as
// after its demo was killed, has no socket any more: what it leaves is swept.
func (w *walk) endDriver(ctx context.Context, pid int) error {
	var err error
	if w.driverListens() {
		attempt, cancel := w.whileDriverListens(ctx)
		err = w.detachKept(attempt)
		cancel()
	}
	if err != nil && !w.driverListens() {
		err = nil
	}
	return errors.Join(err, endProcess(pid))
}

// whileDriverListens returns a context that ends when the driver's socket is
// removed: a client would go on trying to connect to a driver that has ended.
func (w *walk) whileDriverListens(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for w.driverListens() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	return ctx, cancel
}

func (w *walk) driverListens() bool {
	_, err := os.Lstat(strings.TrimPrefix(w.endpoint(), "unix://"))
	return !errors.Is(err, fs.ErrNotExist)
}

func readMark(dir string) (m mark, err error) {
	text, err := os.ReadFile(filepath.Join(dir, markName))
	if err != nil {
		return m, fmt.Errorf("%s is no directory that cleat demo --keep has left: %w", dir, err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s cannot be read: %w", filepath.Join(dir, markName), err)
	}
	return m, nil
}

// isCleat reports whether a process is the demo's that serves a socket: ids of
// processes are used again.
func isCleat(pid int, endpoint string) bool {
	line, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
	return err == nil && pid > 0 && bytes.Contains(line, []byte("\x00"+endpoint+"\x00"))
}

// detachKept detaches the volumes also from where a person has put them.
func (w *walk) detachKept(ctx context.Context) error {
	driver, err := client.Dial(ctx, client.Config{Endpoint: w.endpoint(), StateDir: w.clientState()})
	if err != nil {
		return err
	}
	_, err = detachAll(ctx, driver)
	return errors.Join(err, driver.Close())
}

// endProcess ends a process that is no child of this one.
func endProcess(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: pidfd_open: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, terminate, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: SIGTERM: %w", pid, err)
	}
	deadline := time.Now().Add(stopBound)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("process %d: poll: %w", pid, err)
		case n == 0:
			return fmt.Errorf("process %d still runs %s after SIGTERM: look into its log, or end it with: kill -9 %[1]d", pid, stopBound)
		default:
			return nil
		}
	}
}

// kept is how to reach what stays.
func (w *walk) kept() *Kept {
	k := &Kept{
		Driver: driverName, Host: w.hostEndpoint(), Endpoint: w.endpoint(), StateDir: w.clientState(),
		Flags: w.driverFlags(), HostFlags: w.hostFlags(), Command: w.config.Command,
	}
	k.PID, k.HostPID = w.driver.pid(), w.host.pid()
	return k
}

// words tell a person how to go on.
func (k Kept) words(dir string) string {
	var b strings.Builder
	if k.PID != 0 && k.HostPID != 0 {
		fmt.Fprintf(&b, "The driver (process %d), the host of plugins (process %d) and the pool stay; the volumes are attached below %s.\nGo on by hand, as root:\n\n",
			k.PID, k.HostPID, filepath.Join(dir, "volumes"))
	} else {
		fmt.Fprintf(&b, "All is left in %s as it is. What has ended, start again, as root, and look around:\n\n", dir)
		if k.HostPID == 0 {
			fmt.Fprintf(&b, "  %s %s &\n", k.Command, strings.Join(k.HostFlags, " "))
		}
		if k.PID == 0 {
			fmt.Fprintf(&b, "  %s %s &\n", k.Command, strings.Join(k.Flags, " "))
		}
	}
	fmt.Fprintf(&b, "  host=\"--host %s\"\n  at=\"--driver %s $host --state-dir %s\"\n  %s plugins list $host\n", k.Host, k.Driver, k.StateDir, k.Command)
	for _, command := range []string{
		"volume list", "volume stats " + logs, "volume create mine --size 400MiB --fs-type xfs", "volume attach mine /mnt",
		"snapshot list", "volume changed-blocks " + rawBefore + " " + rawAfter,
	} {
		fmt.Fprintf(&b, "  %s %s $at\n", k.Command, command)
	}
	fmt.Fprintf(&b, "\nTake all of it away again:\n\n  %s demo --remove %s\n", k.Command, dir)
	return b.String()
}
