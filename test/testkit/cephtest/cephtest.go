// Package cephtest runs a Ceph cluster of one monitor, one manager, one OSD
// and, if wanted, one metadata server, for tests. Its daemons, Debian's, are
// child processes of the test, with all their files in one directory: nothing
// of the machine changes, and they die with the test process, even if that is
// killed.
//
// A cluster is ready in about 10 s. A package of tests shares one: Run in
// TestMain, and a pool (CreatePool) or a namespace of a pool for each test.
package cephtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/test/testkit"
)

// Options of a cluster. Clusters that run at the same time can share an
// address.
type Options struct {
	Addr      netip.Addr // an address of this machine; zero: 127.0.0.1
	BlockSize int64      // of the OSD in bytes, sparse; 0: 20 GiB
	// FS is the name of a CephFS file system with its metadata server; empty:
	// none. Its pools are FS_meta and FS_data.
	FS string
}

// Cluster is a running cluster.
type Cluster struct {
	dir      string
	opts     Options
	fsid     string
	osdUUID  string
	adminKey string
	ports    [2]int // of the monitor: protocols 2 and 1

	mu      sync.Mutex
	daemons map[string]*testkit.Process // by name: mon.a, mgr.x, osd.0, mds.a
}

// Start starts a cluster that ends with the test. If the test fails, the ends
// of the daemons' logs are printed.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	dir := testkit.Dir(t)
	c := testkit.Value(Run(dir, opts))(t)
	t.Cleanup(func() {
		c.Stop()
		if t.Failed() {
			t.Log(c.Logs())
		}
	})
	return c
}

// Run starts a cluster in an empty directory, which the caller removes after
// Stop. The path of the directory is short: sockets are in it.
func Run(dir string, opts Options) (*Cluster, error) {
	if !opts.Addr.IsValid() {
		opts.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if opts.BlockSize == 0 {
		opts.BlockSize = 20 << 30
	}
	c := &Cluster{dir: dir, opts: opts, fsid: uuid.NewString(), osdUUID: uuid.NewString(), daemons: map[string]*testkit.Process{}}
	if err := c.start(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("start a Ceph cluster: %w\n%s", err, c.Logs())
	}
	return c, nil
}

func (c *Cluster) start() error {
	if err := c.configure(); err != nil {
		return err
	}
	osd := make(chan error, 1)
	go func() { osd <- c.tool("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", c.osdUUID, "--no-mon-config") }()
	err := c.startMonitor()
	if err := errors.Join(err, <-osd); err != nil {
		return err
	}
	if err := c.launch("mgr.x"); err != nil { // it waits for the monitor, as the CLI does
		return err
	}
	if _, err := c.Command("osd", "new", c.osdUUID); err != nil {
		return err
	}
	if err := c.launch("osd.0"); err != nil {
		return err
	}
	if err := c.waitOSD(0); err != nil || c.opts.FS == "" {
		return err
	}
	return c.createFS(c.opts.FS)
}

// createFS creates a file system and waits until clients can use it.
func (c *Cluster) createFS(name string) error {
	for _, pool := range []string{name + "_meta", name + "_data"} {
		if _, err := c.Command("osd", "pool", "create", pool, "8", "8"); err != nil {
			return err
		}
	}
	if _, err := c.Command("fs", "new", name, name+"_meta", name+"_data"); err != nil {
		return err
	}
	if err := c.StartMDS(); err != nil {
		return err
	}
	return c.until("active placement groups", isClean)
}

// StopMDS kills the metadata server and has the monitor mark it down. Metadata
// requests hang.
func (c *Cluster) StopMDS() error {
	c.kill("mds.a")
	_, err := c.Command("mds", "fail", "a")
	return err
}

// StartMDS starts the metadata server and waits until it is active.
func (c *Cluster) StartMDS() error {
	if err := c.launch("mds.a"); err != nil {
		return err
	}
	return c.until("an active metadata server", func(ask ask) error {
		var fs struct {
			MDSMap struct {
				Info map[string]struct{ Name, State string }
			}
		}
		if err := ask(&fs, "fs get "+c.opts.FS); err != nil {
			return err
		}
		for _, mds := range fs.MDSMap.Info {
			if mds.Name == "a" && mds.State == "up:active" {
				return nil
			}
		}
		return fmt.Errorf("the metadata servers are %+v", fs.MDSMap.Info)
	})
}

// ShortenWaits is for tests of controllers. The images of a killed process count
// as open for 10 seconds, and a copy waits 0.02 seconds for each file. With so
// short a tick, reads of the kernel's client can hang (seen with Linux 6.12).
func (c *Cluster) ShortenWaits() error {
	_, err := c.Command("config", "set", "osd", "osd_client_watch_timeout", "10")
	if err == nil && c.opts.FS != "" {
		_, err = c.Command("config", "set", "mds", "mds_tick_interval", "0.02")
	}
	return err
}

func (c *Cluster) startMonitor() error {
	m := c.path("monmap")
	add := fmt.Sprintf("[v2:%s,v1:%s]", c.monitor(0), c.monitor(1))
	return errors.Join(
		c.tool("monmaptool", "--create", "--fsid", c.fsid, "--addv", "a", add, m),
		c.tool("ceph-mon", "-i", "a", "--mkfs", "--monmap", m, "--keyring", c.path("seed")),
		c.launch("mon.a"),
	)
}

// Stop kills the daemons.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.daemons {
		p.Kill()
	}
}

// Conf returns the path of ceph.conf. The keyring of client.admin is next to
// it, and is found through it.
func (c *Cluster) Conf() string { return c.path("ceph.conf") }

// AdminKey returns the key of client.admin.
func (c *Cluster) AdminKey() string { return c.adminKey }

// FSID returns the id of the cluster.
func (c *Cluster) FSID() string { return c.fsid }

// Monitors returns the addresses of the monitor with protocol 2, as a client's
// configuration has them.
func (c *Cluster) Monitors() []string { return []string{c.monitor(0)} }

// LegacyMonitors returns the addresses of the monitor with protocol 1, which
// krbd uses by default.
func (c *Cluster) LegacyMonitors() []string { return []string{c.monitor(1)} }

// Command runs the ceph CLI as client.admin and returns its output.
func (c *Cluster) Command(args ...string) (string, error) {
	return c.output("ceph", append([]string{"--connect-timeout", "20"}, args...)...)
}

// RBD runs the rbd CLI as client.admin and returns its output.
func (c *Cluster) RBD(args ...string) (string, error) { return c.output("rbd", args...) }

// User creates a user, or sets the capabilities of an existing one, as in
// ("node", "mon", "profile rbd", "osd", "profile rbd pool=a"), and returns its
// key. The name is without "client.".
func (c *Cluster) User(name string, caps ...string) (key string, err error) {
	name = "client." + name
	if _, err := c.Command(append([]string{"auth", "get-or-create", name}, caps...)...); err != nil {
		if _, err := c.Command(append([]string{"auth", "caps", name}, caps...)...); err != nil {
			return "", err
		}
	}
	out, err := c.Command("auth", "print-key", name)
	return strings.TrimSpace(out), err
}

// CreatePool creates a pool for RBD with 8 placement groups and waits until
// they are active.
func (c *Cluster) CreatePool(name string) error {
	if _, err := c.Command("osd", "pool", "create", name, "8", "8"); err != nil {
		return err
	}
	if _, err := c.Command("osd", "pool", "application", "enable", name, "rbd"); err != nil {
		return err
	}
	return c.until("active placement groups", isClean)
}

// StopOSD kills the OSD and has the monitor mark it down. Requests to it hang.
func (c *Cluster) StopOSD() error {
	c.kill("osd.0")
	_, err := c.Command("osd", "down", "0")
	return err
}

// StartOSD starts the OSD after StopOSD, and waits until all placement groups
// are active.
func (c *Cluster) StartOSD() error {
	var before osdMap
	out, err := c.Command("osd", "dump", "--format", "json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), &before); err != nil {
		return err
	}
	if err := c.launch("osd.0"); err != nil {
		return err
	}
	return c.waitOSD(before.upFrom())
}

// StopMon kills the monitor. New connections and commands hang.
func (c *Cluster) StopMon() { c.kill("mon.a") }

// StartMon starts the monitor after StopMon, and waits until it answers.
func (c *Cluster) StartMon() error {
	if err := c.launch("mon.a"); err != nil {
		return err
	}
	_, err := c.Command("mon", "stat")
	return err
}

// tool runs a program that must succeed.
func (c *Cluster) tool(name string, args ...string) error {
	_, err := c.output(name, args...)
	return err
}

func (c *Cluster) output(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*testkit.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append([]string{"-c", c.Conf()}, args...)...)
	cmd.Env = c.environ()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %q: %w: %s", name, args, err, strings.TrimSpace(stderr.String()+stdout.String()))
	}
	return stdout.String(), nil
}

// Logs returns the ends of the daemons' logs.
func (c *Cluster) Logs() string {
	var b strings.Builder
	files, _ := filepath.Glob(c.path("log", "*"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			data = []byte(err.Error())
		}
		lines := strings.SplitAfter(string(data), "\n")
		fmt.Fprintf(&b, "%s:\n%s", filepath.Base(f), strings.Join(lines[max(0, len(lines)-30):], ""))
	}
	return b.String()
}
