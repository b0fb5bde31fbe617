package cephfs

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

const (
	mib      = 1 << 20
	sitePath = "/run/site.json"
	paths    = "/vol"
	state    = "/var/lib/client"
)

// rig is two nodes of a cluster.
type rig struct {
	*testing.T
	nodes [2]*kernel.Kernel
	site  cephtest.Site
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, site: cephtest.Site{User: "node", FS: fileSystem}}
	for _, m := range cluster.LegacyMonitors() {
		r.site.Monitors = append(r.site.Monitors, testkit.Value(netip.ParseAddrPort(m))(t))
	}
	testkit.Value(cluster.Command("fs", "subvolumegroup", "create", fileSystem, group))(t)
	r.site.Key = testkit.Value(cluster.User(r.site.User, "mon", "allow r fsname="+fileSystem,
		"mds", fmt.Sprintf("allow rw fsname=%s path=/volumes/%s", fileSystem, group), "osd", "allow rw tag cephfs data="+fileSystem))(t)
	r.site.Server = cephtest.Serve(t, cephnet.HostAddress, change())
	slots := vm.ReserveSlots(t, len(r.nodes))
	for n := range r.nodes {
		s := spec(n)
		s.Slots, s.Programs, s.Lifetime = slots, []string{cephnet.Program("client"), cephnet.Program("mounter")}, 30*time.Minute
		r.nodes[n] = kernel.Of(t, vm.Boot(t, s))
		cephnet.Connect(r.nodes[n], n)
		r.describe(n, sitePath, r.site)
	}
	return r
}

// in returns the rig for a subtest.
func (r *rig) in(t *testing.T) *rig {
	sub := *r
	sub.T = t
	for n, k := range r.nodes {
		sub.nodes[n] = &kernel.Kernel{TB: t, Guest: k.Guest}
	}
	return &sub
}

func (r *rig) describe(n int, path string, s cephtest.Site) {
	testkit.Must(r, r.nodes[n].Guest.WriteFile(r.Context(), path, testkit.Value(json.Marshal(s))(r), 0o600))
}

// change changes subvolumes for the tests of node/cephfs in guests.
func change() func(call, name string, size int64) (string, error) {
	var prefixes atomic.Int64
	return func(call, name string, size int64) (string, error) {
		switch call {
		case "prefix":
			return fmt.Sprintf("s%d-", prefixes.Add(1)), nil
		case "create":
			return create(name, size)
		case "delete":
			_, err := cluster.Command("fs", "subvolume", "rm", fileSystem, name, "--group_name", group)
			return "", err
		case "grow":
			_, err := cluster.Command("fs", "subvolume", "resize", fileSystem, name, fmt.Sprint(size), "--group_name", group)
			return "", err
		}
		return "", fmt.Errorf("unknown call %s", call)
	}
}

// create creates a subvolume, and returns its directory.
func create(name string, size int64) (string, error) {
	if _, err := cluster.Command("fs", "subvolume", "create", fileSystem, name, "--group_name", group, "--size", fmt.Sprint(size)); err != nil {
		return "", err
	}
	out, err := cluster.Command("fs", "subvolume", "getpath", fileSystem, name, "--group_name", group)
	return strings.TrimSpace(out), err
}

// claim is a volume as an orchestrator uses it.
type claim struct {
	*rig
	name, path string
	flags      []string // of the client
}

func (r *rig) claim(name string) *claim {
	return &claim{rig: r, name: name, path: testkit.Value(create(name, 64*mib))(r)}
}

func (c *claim) target() string { return paths + "/" + c.name + "/target" }

// try makes a call of a node in a process of its own, and returns its output.
func (c *claim) try(n int, call string, flags ...string) (string, error) {
	argv := append([]string{"client", "-site", sitePath}, append(c.flags, flags...)...)
	return c.nodes[n].Try(append(argv, call, c.name, c.path)...)
}

func (c *claim) call(n int, call string, flags ...string) string {
	c.Helper()
	return testkit.Value(c.try(n, call, flags...))(c)
}

// fails is try for a call that fails with words in its output, before its
// timeout.
func (c *claim) fails(n int, call, words string, flags ...string) {
	c.Helper()
	const bound = 50 * time.Second
	begun := time.Now()
	out, err := c.try(n, call, flags...)
	if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), words) || took > bound {
		c.Errorf("%s on node %d: %s, %v after %.1f s; want %q within %v", call, n, out, err, took.Seconds(), words, bound)
	}
}

func (c *claim) attach(n int) {
	c.Helper()
	c.call(n, "stage")
	c.call(n, "publish")
}

func (c *claim) detach(n int) {
	c.Helper()
	c.call(n, "unpublish")
	c.call(n, "unstage")
}

func (c *claim) run(n int, script string) string {
	c.Helper()
	return c.nodes[n].Run("sh", "-c", "cd "+c.target()+" && "+script)
}

// wantNothing: a node has no mount, client or path of a volume.
func (r *rig) wantNothing(n int) {
	r.Helper()
	for _, s := range []string{
		"grep ' ceph ' /proc/self/mountinfo || true",
		"ls -d " + paths + "/*/target 2>/dev/null || true",
		"ls " + state + "/cephfs/cephfs.test 2>/dev/null || true",
		"mkdir -p /run/debug; mount -t debugfs none /run/debug; ls /run/debug/ceph; umount /run/debug",
	} {
		if out := r.nodes[n].Run("sh", "-c", s); out != "" {
			r.Errorf("node %d has left (%s):\n%s", n, s, out)
		}
	}
}

// fence adds an entry to the blocklist, or removes it.
func (r *rig) fence(verb, entry string) {
	r.Helper()
	testkit.Value(cluster.Command("osd", "blocklist", verb, entry))(r)
}

// instance returns the client of a volume on a node, as the controller finds it.
func (c *claim) instance(n int) string {
	c.Helper()
	var sessions []struct {
		Entity struct {
			Addr struct {
				Addr  string
				Nonce int64
			}
		}
		Metadata struct{ Root string } `json:"client_metadata"`
	}
	testkit.Must(c, json.Unmarshal([]byte(testkit.Value(cluster.Command("tell", "mds.a", "session", "ls"))(c)), &sessions))
	for _, s := range sessions {
		if a := s.Entity.Addr; s.Metadata.Root == c.path && strings.HasPrefix(a.Addr, cephnet.GuestAddress(n).String()+":") {
			return fmt.Sprintf("%s/%d", a.Addr, a.Nonce)
		}
	}
	c.Fatalf("no session of node %d with %s: %+v", n, c.path, sessions)
	return ""
}
