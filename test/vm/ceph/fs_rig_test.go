package ceph

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/vm/cephnet"
)

const (
	fsSite  = "/run/cephfs.json"
	fsPaths = "/vol"
	fsState = "/var/lib/client"
)

// fsRig tests node/cephfs on the nodes of a rig.
type fsRig struct {
	*rig
	site cephtest.Site
}

func newFSRig(r *rig) *fsRig {
	f := &fsRig{rig: r, site: cephtest.Site{Monitors: r.site.Monitors, User: "fsnode", FS: fileSystem}}
	testkit.Value(cluster.Command("fs", "subvolumegroup", "create", fileSystem, group))(r)
	f.site.Key = testkit.Value(cluster.User(f.site.User, "mon", "allow r fsname="+fileSystem,
		"mds", fmt.Sprintf("allow rw fsname=%s path=/volumes/%s", fileSystem, group), "osd", "allow rw tag cephfs data="+fileSystem))(r)
	f.site.Server = cephtest.Serve(r, cephnet.HostAddress, changeSubvolumes())
	for n := range r.nodes {
		r.describe(n, fsSite, f.site)
	}
	return f
}

// In returns the rig for a subtest.
func (r *fsRig) In(t *testing.T) *fsRig { return &fsRig{r.rig.In(t), r.site} }

// changeSubvolumes changes subvolumes for the tests of node/cephfs in guests.
func changeSubvolumes() func(call, name string, size int64) (string, error) {
	var prefixes atomic.Int64
	return func(call, name string, size int64) (string, error) {
		switch call {
		case "prefix":
			return fmt.Sprintf("s%d-", prefixes.Add(1)), nil
		case "create":
			return createSubvolume(name, size)
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

// createSubvolume creates one, and returns its directory.
func createSubvolume(name string, size int64) (string, error) {
	if _, err := cluster.Command("fs", "subvolume", "create", fileSystem, name, "--group_name", group, "--size", fmt.Sprint(size)); err != nil {
		return "", err
	}
	out, err := cluster.Command("fs", "subvolume", "getpath", fileSystem, name, "--group_name", group)
	return strings.TrimSpace(out), err
}

// directory is a volume as an orchestrator uses it.
type directory struct {
	*fsRig
	name, path string
	flags      []string // of the client
}

func (r *fsRig) claim(name string) *directory {
	return &directory{fsRig: r, name: name, path: testkit.Value(createSubvolume(name, 64*mib))(r)}
}

func (c *directory) target() string { return fsPaths + "/" + c.name + "/target" }

// try makes a call of a node in a process of its own, and returns its output.
func (c *directory) try(n int, call string, flags ...string) (string, error) {
	argv := append([]string{"fsclient", "-site", fsSite}, append(c.flags, flags...)...)
	return c.nodes[n].Try(append(argv, call, c.name, c.path)...)
}

func (c *directory) call(n int, call string, flags ...string) string {
	c.Helper()
	return testkit.Value(c.try(n, call, flags...))(c)
}

// fails is try for a call that fails with words in its output.
func (c *directory) fails(n int, call, words string, flags ...string) {
	c.Helper()
	if out, err := c.try(n, call, flags...); err == nil || !strings.Contains(err.Error(), words) {
		c.Errorf("%s on node %d: %s, %v; want %q", call, n, out, err, words)
	}
}

func (c *directory) attach(n int) {
	c.Helper()
	c.call(n, "stage")
	c.call(n, "publish")
}

func (c *directory) detach(n int) {
	c.Helper()
	c.call(n, "unpublish")
	c.call(n, "unstage")
}

func (c *directory) run(n int, script string) string {
	c.Helper()
	return c.nodes[n].Run("sh", "-c", "cd "+c.target()+" && "+script)
}

// wantNothing: a node has no mount, client or path of a volume.
func (r *fsRig) wantNothing(n int) {
	r.Helper()
	for _, s := range []string{
		"grep ' ceph ' /proc/self/mountinfo || true",
		"ls -d " + fsPaths + "/*/target 2>/dev/null || true",
		"ls " + fsState + "/cephfs/cephfs.test 2>/dev/null || true",
		"mkdir -p /run/debug; mount -t debugfs none /run/debug; ls /run/debug/ceph; umount /run/debug",
	} {
		if out := r.nodes[n].Run("sh", "-c", s); out != "" {
			r.Errorf("node %d has left (%s):\n%s", n, s, out)
		}
	}
}

// fence adds an entry to the blocklist, or removes it.
func (r *fsRig) fence(verb, entry string) {
	r.Helper()
	testkit.Value(cluster.Command("osd", "blocklist", verb, entry))(r)
}

// instance returns the client of a volume on a node, as the controller finds it.
func (c *directory) instance(n int) string {
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
