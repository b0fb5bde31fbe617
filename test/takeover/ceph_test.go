//go:build ceph

package takeover

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume/access"
)

// tags are those of the program under test.
const tags = "ceph,pacific,crashpoints"

var cephKinds = []kind{{"ceph", func(t testing.TB) place { return newCephSite(t) }, 8}}

const (
	cephPool = "volumes"
	cephUser = "controller"
)

// cephAddress is that of the cluster and the controllers (TEST-NET-2 of RFC 5737).
var cephAddress = netip.MustParseAddr("198.51.100.1")

// ceph is the cluster of all sites; each has a namespace of its pool.
var ceph struct {
	*cephtest.Cluster
	key    string      // of the controllers
	reader *rados.Conn // is never fenced
}

func startCeph(dir string) (stop func(), err error) {
	stop = func() {
		if ceph.reader != nil {
			ceph.reader.Shutdown()
		}
		if ceph.Cluster != nil {
			ceph.Stop()
		}
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", cephAddress.String(), "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return stop, fmt.Errorf("ip %q: %w: %s", args, err, out)
		}
	}
	if ceph.Cluster, err = cephtest.Run(dir, cephtest.Options{Addr: cephAddress}); err != nil {
		return stop, err
	}
	if err := ceph.CreatePool(cephPool); err != nil {
		return stop, err
	}
	if ceph.key, err = ceph.User(cephUser, "mon", `profile rbd, allow command "osd blocklist"`, "mgr", "profile rbd pool="+cephPool, "osd", "allow *"); err != nil {
		return stop, err
	}
	ceph.reader, err = connectCeph()
	return stop, err
}

func connectCeph() (*rados.Conn, error) {
	c, err := rados.NewConnWithUser("admin")
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		c.SetConfigOption("mon_host", ceph.Monitors()[0]), c.SetConfigOption("key", ceph.AdminKey()), c.SetConfigOption("rbd_cache", "false"))
	if err == nil {
		err = c.Connect()
	}
	if err != nil {
		c.Shutdown()
		return nil, err
	}
	return c, nil
}

// cephSite is a driverSite whose storage is a Ceph cluster. Its lost node has a
// network namespace and an address of its own.
type cephSite struct {
	*driverSite
	netns  testkit.NetNS
	reader *rados.IOContext
	old    *rados.IOContext // of the first client instance of the lost node
	stop   func()           // ends the writers

	mu      sync.Mutex
	writers []*cephWriter
}

func newCephSite(t testing.TB) *cephSite {
	t.Helper()
	s := &cephSite{driverSite: newDriverSite(t), netns: testkit.NewNetNS(t)}
	s.connectNode()
	s.reader = testkit.Value(ceph.reader.OpenIOContext(cephPool))(t)
	t.Cleanup(s.reader.Destroy)
	testkit.Must(t, rbd.NamespaceCreate(s.reader, s.name))
	s.reader.SetNamespace(s.name)

	config, secret := filepath.Join(s.dir, "config.json"), filepath.Join(s.dir, "secret")
	text := testkit.Value(json.Marshal([]map[string]any{{
		"clusterID": "test", "monitors": ceph.Monitors(), "rbd": map[string]string{"radosNamespace": s.name},
	}}))(t)
	testkit.Must(t, os.WriteFile(config, text, 0o600), os.Mkdir(secret, 0o700),
		os.WriteFile(filepath.Join(secret, "userID"), []byte(cephUser), 0o600), os.WriteFile(filepath.Join(secret, "userKey"), []byte(ceph.key), 0o600))
	s.engine = []string{"--engine", "ceph", "--ceph-pool", cephPool, "--ceph-cluster", "test", "--ceph-config", config, "--ceph-secret", secret}
	return s
}

// connectNode connects the lost node to the cluster.
func (s *cephSite) connectNode() {
	port := "ceph" + s.name
	testkit.Run(s.t, "ip", "link", "add", port, "type", "veth", "peer", "name", "node", "netns", s.netns.Path())
	s.t.Cleanup(func() { testkit.Run(s.t, "ip", "link", "del", port) })
	testkit.Must(s.t, s.netns.Do(func() error {
		testkit.Run(s.t, "ip", "address", "add", netip.PrefixFrom(s.lostAddr, 32).String(), "dev", "node")
		testkit.Run(s.t, "ip", "link", "set", "node", "up")
		testkit.Run(s.t, "ip", "route", "add", cephAddress.String(), "dev", "node")
		return nil
	}))
	testkit.Run(s.t, "ip", "link", "set", port, "up")
	testkit.Run(s.t, "ip", "route", "add", s.lostAddr.String(), "dev", port)
}

// instance connects a new client instance of the lost node.
func (s *cephSite) instance() (c *rados.Conn, io *rados.IOContext, err error) {
	err = s.netns.Do(func() (err error) { // librados' threads are in the namespace, too
		c, err = connectCeph()
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if io, err = c.OpenIOContext(cephPool); err != nil {
		c.Shutdown()
		return nil, nil, err
	}
	io.SetNamespace(s.name)
	return c, io, nil
}

// cephWriter writes to an object of the volume on and on when its last write began,
// whatever the cluster answers.
type cephWriter struct {
	object string

	mu           sync.Mutex
	acknowledged time.Time // when the last write began that the cluster has acknowledged
	err          error     // of the last write
}

func (w *cephWriter) run(ctx context.Context, io *rados.IOContext) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		err := io.WriteFull(w.object, binary.BigEndian.AppendUint64(nil, uint64(began.UnixNano())))
		w.mu.Lock()
		if w.err = err; err == nil {
			w.acknowledged = began
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (w *cephWriter) state() (acknowledged time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acknowledged, w.err
}

// start starts the writers of a client instance.
func (s *cephSite) start(ctx context.Context, running *sync.WaitGroup, io *rados.IOContext, prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 8 {
		w := &cephWriter{object: fmt.Sprintf("%s.%016x", prefix, len(s.writers))}
		s.writers = append(s.writers, w)
		running.Go(func() { w.run(ctx, io) })
	}
}

func (s *cephSite) all() []*cephWriter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writers)
}

// write starts the controller and two client instances on the lost node: one that has
// the volume open, as a mapped device, and a second one that connects when the first
// one is refused, of which the controller has no record.
func (s *cephSite) write() (accepted func() time.Time) {
	s.t.Helper()
	s.prepare()
	volume, isRBD := testkit.Value(access.Decode(s.volume.GetVolumeContext()))(s.t).(access.RBD)
	if !isRBD {
		s.t.Fatalf("the volume is %v", s.volume.GetVolumeContext())
	}
	first, io, err := s.instance()
	testkit.Must(s.t, err)
	s.t.Cleanup(first.Shutdown)
	s.t.Cleanup(io.Destroy)
	image := testkit.Value(rbd.OpenImage(io, volume.Image, rbd.NoSnapshot))(s.t)
	s.t.Cleanup(func() { _ = image.Close() }) // of a fenced client it fails
	prefix := testkit.Value(image.Stat())(s.t).Block_name_prefix

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.stop = func() { cancel(); running.Wait() }
	s.t.Cleanup(s.stop)
	s.old = io
	s.start(ctx, &running, io, prefix)
	for _, w := range s.all() {
		testkit.Eventually(s.t, "the lost node writes", func() bool { at, _ := w.state(); return !at.IsZero() })
	}
	running.Go(func() { s.writeAgain(ctx, prefix) })
	return s.accepted
}

// writeAgain writes with another client instance once the first one is refused.
func (s *cephSite) writeAgain(ctx context.Context, prefix string) {
	first, tick := s.all()[0], time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := first.state(); err == nil {
			continue
		}
		c, io, err := s.instance()
		if err != nil {
			continue
		}
		defer c.Shutdown()
		defer io.Destroy()
		var running sync.WaitGroup
		s.start(ctx, &running, io, prefix)
		running.Wait()
		return
	}
}

// accepted returns when the last write of the lost node began that is in the storage.
func (s *cephSite) accepted() (last time.Time) {
	s.t.Helper()
	for _, w := range s.all() {
		acknowledged, _ := w.state()
		data := make([]byte, 8)
		switch n, err := s.reader.Read(w.object, data, 0); {
		case errors.Is(err, rados.ErrNotFound) && acknowledged.IsZero():
		case err != nil || n != len(data):
			s.t.Fatalf("object %s has %d bytes: %v", w.object, n, err)
		default:
			at := time.Unix(0, int64(binary.BigEndian.Uint64(data)))
			if at.Before(acknowledged.Round(0)) {
				s.t.Errorf("object %s has the write of %s, and not the one of %s, which was acknowledged", w.object, at, acknowledged)
			}
			if at.After(last) {
				last = at
			}
		}
	}
	if last.IsZero() {
		s.t.Fatal("no write of the lost node is in the storage")
	}
	return last
}

// reboot also ends the writers, each of which has been refused to the last.
func (s *cephSite) reboot() {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "both client instances write on, and are refused", func() error {
		all := s.all()
		if len(all) != 16 {
			return fmt.Errorf("%d writers", len(all))
		}
		for _, w := range all {
			if _, err := w.state(); !isRefused(err) {
				return fmt.Errorf("object %s: %v", w.object, err)
			}
		}
		return nil
	})
	s.stop()
	s.site.reboot()
}

// isRefused reports whether the cluster has answered that the client is on its blocklist.
func isRefused(err error) bool {
	e, ok := errors.AsType[interface {
		error
		ErrorCode() int
	}](err)
	return ok && e.ErrorCode() == -int(syscall.ESHUTDOWN)
}

// checkReturned fails unless node and storage are as before the takeover. The client
// instance of before the reboot stays refused.
func (s *cephSite) checkReturned() {
	s.t.Helper()
	s.checkNode()
	testkit.Must(s.t, s.publish(csi.NewControllerClient(s.process.Conn), "lost"))
	c, io, err := s.instance()
	testkit.Must(s.t, err)
	defer c.Shutdown()
	defer io.Destroy()
	testkit.EventuallyNil(s.t, "the node writes again", func() error { return io.WriteFull("again", []byte("again")) })
	if err := s.old.WriteFull("again", []byte("old")); !isRefused(err) {
		s.t.Errorf("a write of a client instance of before the reboot: %v", err)
	}
}

// cephSabotages are controllers of volumes with a step omitted.
var cephSabotages = []sabotage{
	{"recorded client instances are blocked, but not the address", notFenced, workload.Replacement{
		File: "engine/ceph/blocklist/plan.go",
		Old:  "bool { return m.until[e]",
		New:  "bool { return e.nonce == 0 || m.until[e]",
	}},
	{"entries of the blocklist are not read back", notFenced, workload.Replacement{
		File: "engine/ceph/blocklist/plan.go",
		Old:  "bool { return m.until[e]",
		New:  "bool { return true || m.until[e]",
	}},
}

func TestSabotageOfCephTurnsRed(t *testing.T) {
	for _, c := range soak.Pick(1, slices.Concat(cephSabotages, sabotages)) {
		t.Run("ceph: "+c.name, func(t *testing.T) { c.turnsRed(t, cephKinds) })
	}
}
