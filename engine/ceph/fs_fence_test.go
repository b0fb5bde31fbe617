//go:build ceph

package ceph

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ceph/go-ceph/cephfs"
	"github.com/ceph/go-ceph/rados"

	"github.com/cleatproject/cleat/engine/ceph/blocklist"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// fsClient is a client on the node with a volume mounted. Its calls can block
// once it is fenced.
type fsClient struct {
	conn  *rados.Conn
	mount *cephfs.MountInfo
}

func (r *fenceRig) mountOnNode(v volume.Volume) (c fsClient, err error) {
	err = r.node.Do(func() (err error) { // the threads of the libraries are in the namespace, too
		if c.conn, err = dial(shared.Cluster); err != nil {
			return err
		}
		c.mount, err = cephfs.CreateFromRados(c.conn)
		if err == nil {
			err = c.mount.SelectFilesystem(testFS)
		}
		if err == nil {
			err = c.mount.MountWithRoot(pathOf(v))
		}
		return err
	})
	return c, err
}

// write creates files and writes them until that fails, and returns how many it
// has created. Each has data and metadata of its own.
func (c fsClient) write(began func()) (n int, err error) {
	for ; ; n++ {
		f, err := c.mount.Open(fmt.Sprintf("/%d", n), os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return n, err
		}
		_, err = f.WriteAt([]byte("data"), 0)
		if err == nil {
			err = f.Fsync(cephfs.SyncAll)
		}
		_ = f.Close() // of a fenced client it fails
		if err != nil {
			return n, err
		}
		if n == 3 {
			began()
		}
	}
}

// A fence of a node that writes files returns when no metadata server has a
// session of it. After the fence its old client stays refused, and a new one
// works.
func TestFSFence(t *testing.T) {
	e := openFS(t, fsConfig(t))
	r := assembleFences(t, e, func(f *blocklist.Fencer) volume.Fencer { return NewFSFencer(e, f) })
	r.connectNode()
	t.Cleanup(func() { testkit.Value(shared.Command("osd", "blocklist", "clear"))(t) })
	stop := testkit.Go(t, r.recorder.Run)
	v := makeFS(t, e, fsRequest("granted", volume.Source{}))
	grant := volume.Grant{Volume: v.ID, Client: volume.Client{Node: "node", Addrs: []netip.Addr{nodeAddress}}, Mode: "MULTI_NODE_MULTI_WRITER/mount", Granted: time.Now()}
	testkit.Value(r.ledger.Grant(testkit.Context(t), grant))(t)
	for _, block := range []string{nodeAddress.String() + "/32", "198.51.100.4/30"} {
		c := testkit.Value(r.mountOnNode(v))(t)
		all := testkit.Value(e.sessions())(t)
		mine := slices.DeleteFunc(all, func(s fsSession) bool { return s.Root != pathOf(v) })
		if len(mine) != 1 || mine[0].Client.Addr != nodeAddress {
			t.Fatalf("the sessions with volume %s are %+v", v.ID, mine)
		}
		testkit.Eventually(t, "the client instance is recorded", func() bool {
			_, clients := r.instances()
			return slices.Contains(clients, mine[0].Client.Client)
		})
		wantKind(t, e.Delete(testkit.Context(t), v.ID), "Delete of a mounted volume", errs.Precondition)
		var began, ended sync.WaitGroup
		began.Add(1)
		var created int
		var failed error
		ended.Go(func() { created, failed = c.write(began.Done) })
		began.Wait()
		testkit.Must(t, r.fence(block))
		left := testkit.Value(r.fencer.Sessions(testkit.Context(t), []netip.Prefix{netip.MustParsePrefix(block)}))(t)
		if len(left) > 0 {
			t.Errorf("sessions of fenced clients: %+v", left)
		}
		ended.Wait()
		names := testkit.Value(list(shared.files, pathOf(v)))(t)
		if !is(failed, syscall.ESHUTDOWN, syscall.EACCES, syscall.EIO) || len(names) > created+1 {
			t.Errorf("the fenced client created %d files, then failed with %v; the volume has %d", created, failed, len(names))
		}
		if got := testkit.Value(r.enforcer.List(testkit.Context(t), nil))(t); fmt.Sprint(got) != "["+block+"]" {
			t.Errorf("fenced are %v, want %s", got, block)
		}
		if _, err := r.mountOnNode(v); err == nil {
			t.Error("a fenced node mounts the volume")
		}

		r.unfence(block)
		if f, err := c.mount.Open("/late", os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			t.Errorf("the client that was fenced opened a file: %v", f.Close())
		}
		again := testkit.Value(r.mountOnNode(v))(t)
		f := testkit.Value(again.mount.Open("/again", os.O_CREATE|os.O_WRONLY, 0o644))(t)
		testkit.Must(t, f.Close(), again.mount.Unmount(), again.mount.Release())
		again.conn.Shutdown()
		after := testkit.Value(list(shared.files, pathOf(v)))(t)
		if slices.Contains(after, "late") || !slices.Contains(after, "again") {
			t.Errorf("files after the fence: %q", after)
		}
		for _, name := range after {
			testkit.Must(t, shared.files.Unlink(pathOf(v)+"/"+name))
		}
	}
	stop()
}

// Without the capability to list sessions there is no evidence, and no fence.
func TestFSFenceIsDenied(t *testing.T) {
	t.Parallel()
	config := fsConfig(t)
	config.Credentials.User = "nosessions"
	config.Credentials.Key = testkit.Value(shared.User("nosessions", "mon", `allow r, allow command "osd blocklist"`, "mgr", "allow rw",
		"osd", "allow *", "mds", "allow rws fsname="+testFS+" path=/volumes"))(t)
	e := openFS(t, config)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	r := assembleFences(t, e, func(f *blocklist.Fencer) volume.Fencer { return NewFSFencer(e, f) })
	err := r.fence("198.51.100.11/32")
	wantKind(t, err, "a fence without mds 'allow *'", errs.Unavailable)
	if err == nil || !strings.Contains(err.Error(), "mds 'allow *'") {
		t.Errorf("%v does not name the capability", err)
	}
	testkit.Must(t, e.Delete(context.WithoutCancel(t.Context()), v.ID))
}

// A fence waits for a metadata server that gets new OSD maps late: until then
// that one lets fenced clients in.
func TestFSFenceOfSlowServer(t *testing.T) {
	e := openFS(t, fsConfig(t))
	r := assembleFences(t, e, func(f *blocklist.Fencer) volume.Fencer { return NewFSFencer(e, f) })
	t.Cleanup(func() { testkit.Value(shared.Command("osd", "blocklist", "clear"))(t) })
	server := func(command string) (out []byte) {
		testkit.Must(t, e.mount.use(func(i *cephfs.MountInfo) (err error) {
			out, _, err = i.MdsCommand("a", [][]byte{[]byte(command)})
			return err
		}))
		return out
	}
	set := func(key, value string) {
		server(fmt.Sprintf(`{"prefix":"config set","var":%q,"val":[%q]}`, key, value))
	}
	set("ms_inject_delay_max", "5")
	set("ms_inject_delay_probability", "1")
	set("ms_inject_delay_type", "mon")
	defer func() {
		set("ms_inject_delay_type", "")
		set("ms_inject_delay_probability", "0")
	}()
	shared.StopMon() // the delays are for new connections
	testkit.Must(t, shared.StartMon())
	for _, block := range []string{"198.51.100.21/32", "198.51.100.22/32", "198.51.100.23/32"} {
		before := testkit.Value(parseEpoch([]byte(testkit.Value(shared.Command("osd", "stat", "--format", "json"))(t)), "epoch"))(t)
		testkit.Must(t, r.fence(block))
		if have := testkit.Value(parseEpoch(server(`{"prefix":"status","format":"json"}`), "osdmap_epoch"))(t); have <= before {
			t.Errorf("the fence of %s is after OSD map %d, and mds.a has %d", block, before, have)
		}
	}
}
