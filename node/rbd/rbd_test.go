package rbd_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/internal/linux/krbd/krbdtest"
	"github.com/cleatproject/cleat/internal/linux/libceph"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/rbd"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const size = 1 << 20

type rig struct {
	*krbdtest.Machine
	*rbd.Attacher
	config rbd.Config
}

func newRig(t *testing.T, change func(*rbd.Config)) rig {
	r := rig{Machine: krbdtest.New(t)}
	r.config = configOf(r.Machine, t.TempDir())
	if change != nil {
		change(&r.config)
	}
	r.Attacher = newAttacher(t, r.config, "")
	return r
}

func attach(t *testing.T, a *rbd.Attacher, target node.Target) node.Device {
	t.Helper()
	at := testkit.Value(a.Attach(t.Context(), target, node.Use{Block: true}))(t)
	testkit.Must(t, at.File.Close())
	return at.Device
}

// While the cluster does not answer, calls end at their bound; a repeat gets the
// result of the one map, also in another process.
func TestClusterHangs(t *testing.T) {
	r := newRig(t, func(c *rbd.Config) { c.Timeout = 300 * time.Millisecond })
	other := newAttacher(t, r.config, "")
	release := make(chan struct{})
	answer := sync.OnceFunc(func() { close(release) })
	t.Cleanup(answer)
	r.Before = func(file, _ string) error { <-release; return nil }
	v := node.Target{Locator: image("v", r.Create(pool+"/v", size))}
	for _, a := range []*rbd.Attacher{r.Attacher, r.Attacher, other} {
		_, err := a.Attach(t.Context(), v, node.Use{Block: true})
		if errs.KindOf(err) != errs.Unavailable || !strings.Contains(err.Error(), pool+"/v") {
			t.Errorf("Attach: %v; want Unavailable with the image", err)
		}
	}
	info := testkit.Value(r.Inspect(t.Context(), v))(t)
	if info.Presence != node.Unreachable || !errors.Is(info.Problem, errs.Unavailable) || !strings.Contains(info.Problem.Error(), "attach") {
		t.Errorf("Inspect: %+v; want unreachable, with the call", info)
	}
	// The map is still to come: nothing is detached yet.
	if err := r.Detach(t.Context(), v); err == nil {
		t.Error("Detach succeeds while an attach is in progress")
	}
	answer()
	var d [2]node.Device
	for i, a := range []*rbd.Attacher{r.Attacher, other} {
		testkit.EventuallyNil(t, "Attach", func() error {
			at, err := a.Attach(t.Context(), v, node.Use{Block: true})
			if err == nil {
				d[i] = at.Device
				err = at.File.Close()
			}
			return err
		})
	}
	if lines := r.Lines(); d[0] != d[1] || len(lines) != 1 {
		t.Errorf("attached as %+v and %+v with %d maps", d[0], d[1], len(lines))
	}
	testkit.EventuallyNil(t, "Detach", func() error { return r.Detach(t.Context(), v) })
}

// Devices of other programs and of other drivers are neither used nor removed.
func TestForeignDevice(t *testing.T) {
	r := newRig(t, nil)
	v := node.Target{Locator: image("v", r.Create(pool+"/v", size))}
	k := r.Machine.Kernel()
	foreign := testkit.Value(k.Map(t.Context(), krbd.Spec{
		Client: libceph.Client{Monitors: []netip.AddrPort{netip.MustParseAddrPort(krbdtest.Monitor)}, User: krbdtest.User, Secret: krbdtest.Secret},
		Owner:  "cleat/other.driver/" + cluster + "//", Pool: pool, Image: "v",
	}))(t)
	_, err := r.Attach(t.Context(), v, node.Use{Block: true})
	if errs.KindOf(err) != errs.Precondition || !strings.Contains(err.Error(), foreign.Path) {
		t.Errorf("Attach: %v; want Precondition with %s", err, foreign.Path)
	}
	if held := testkit.Value(r.Held(t.Context()))(t); len(held) > 0 {
		t.Errorf("Held: %+v", held)
	}
	testkit.Must(t, r.Detach(t.Context(), v))
	testkit.Must(t, k.Unmap(t.Context(), foreign))
	if lines := r.Lines(); len(lines) != 1 {
		t.Errorf("mapped as well: %q", lines)
	}
}

// A locator without an image id, as of a static volume, and what Held makes of
// its device after the process ended.
func TestStaticVolume(t *testing.T) {
	r := newRig(t, func(c *rbd.Config) {
		c.Clusters = func() (cephconf.Clusters, error) {
			return cephconf.Clusters{{ID: cluster, Monitors: []string{krbdtest.Monitor}, RBD: cephconf.RBD{RadosNamespace: "tenant"}}}, nil
		}
	})
	id := r.Create(pool+"/tenant/csi-vol-1", size)
	l := access.RBD{Ceph: access.Ceph{ClusterID: cluster}, Pool: pool, Image: "csi-vol-1"}
	d := attach(t, r.Attacher, node.Target{Locator: l})
	if again := attach(t, newAttacher(t, r.config, ""), node.Target{Locator: l}); again != d {
		t.Errorf("attached again as %+v, first as %+v", again, d)
	}
	held := testkit.Value(r.Held(t.Context()))(t)
	l.ImageID = id
	want := []node.Held{{Volume: volume.ID("csi-vol-1"), Locator: l, Device: d}}
	testkit.Diff(t, "Held", want, held)
	testkit.Must(t, r.Detach(t.Context(), node.Target{Locator: held[0].Locator, Device: held[0].Device}))
}

// The volume of an image whose id changed since its creation is the one with
// which it was attached. Keys of earlier releases do not name it.
func TestHeldMovedImage(t *testing.T) {
	r := newRig(t, nil)
	v := node.Target{Locator: image("v", r.Create(pool+"/v", size)), Volume: "first id, of 1/2: 50%"}
	attach(t, r.Attacher, v)
	held := testkit.Value(newAttacher(t, r.config, "").Held(t.Context()))(t)
	if len(held) != 1 || held[0].Volume != v.Volume {
		t.Errorf("Held: %+v, want the volume %q", held, v.Volume)
	}
	testkit.Must(t, r.Detach(t.Context(), v))
	k := r.Machine.Kernel()
	earlier := testkit.Value(k.Map(t.Context(), krbd.Spec{
		Client: libceph.Client{Monitors: []netip.AddrPort{netip.MustParseAddrPort(krbdtest.Monitor)}, User: krbdtest.User, Secret: krbdtest.Secret},
		Owner:  "cleat/rbd.test%2F/" + cluster + "//", Pool: pool, Image: "v",
	}))(t)
	if held = testkit.Value(r.Held(t.Context()))(t); len(held) != 1 || held[0].Volume != "v" || held[0].Device.Path != earlier.Path {
		t.Errorf("Held with a key of an earlier release: %+v", held)
	}
	testkit.Must(t, r.Detach(t.Context(), v))
}

// Only the cluster's refusal makes a device lost: no answer and other errors do
// not, and hold no caller longer than the bound.
func TestProbe(t *testing.T) {
	r := newRig(t, func(c *rbd.Config) { c.Timeout = 300 * time.Millisecond })
	v := node.Target{Locator: image("v", r.Create(pool+"/v", size))}
	var d node.Device
	testkit.EventuallyNil(t, "attached", func() error { // a busy machine needs longer than the timeout
		at, err := r.Attach(t.Context(), v, node.Use{Block: true})
		if err != nil {
			return err
		}
		d = at.Device
		return at.File.Close()
	})
	want := func(what string, p node.Presence, word string) {
		t.Helper()
		testkit.EventuallyNil(t, what, func() error {
			i := testkit.Value(r.Inspect(t.Context(), v))(t)
			if i.Device != d || i.Presence != p || i.Problem == nil != (p == node.Present) || i.Problem != nil && !strings.Contains(i.Problem.Error(), word) {
				return fmt.Errorf("%+v; want %s, %q", i, p, word)
			}
			return nil
		})
	}
	want("healthy", node.Present, "")
	for _, errno := range []unix.Errno{unix.EIO, unix.ENOENT, unix.ETIMEDOUT} {
		r.Before = func(string, string) error { return errno }
		want(errno.Error(), node.Unreachable, errno.Error())
	}
	release := make(chan struct{})
	r.Before = func(string, string) error { <-release; return nil }
	for range 2 {
		want("no answer", node.Unreachable, "probe")
	}
	r.Fence(pool + "/v")
	close(release)
	want("fenced", node.Lost, "has fenced")
	testkit.EventuallyNil(t, "detached", func() error { return r.Detach(t.Context(), v) })
}

// An image that took the volume's name is not attached, and not left mapped.
func TestReplacedImage(t *testing.T) {
	r := newRig(t, nil)
	v := node.Target{Locator: image("v", r.Create(pool+"/v", size))}
	r.Delete(pool + "/v")
	r.Create(pool+"/v", size)
	_, err := r.Attach(t.Context(), v, node.Use{})
	if errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("Attach: %v; want NotFound", err)
	}
}

func TestCredentials(t *testing.T) {
	r := newRig(t, func(c *rbd.Config) { c.Credentials = nil })
	v := image("v", r.Create(pool+"/v", size))
	secrets := map[string]string{"userID": krbdtest.User, "userKey": krbdtest.Secret}
	named := v
	named.User = "other"
	for _, c := range []struct {
		name    string
		locator access.RBD
		secrets map[string]string
		kind    errs.Kind
		word    string
	}{
		{"none", v, nil, errs.Unauthenticated, "node-stage-secret-name"},
		{"half", v, map[string]string{"userID": "node"}, errs.Invalid, "userKey"},
		{"no key", v, map[string]string{"userID": "node", "userKey": "plain words"}, errs.Invalid, "base64"},
		{"other user", v, map[string]string{"userID": "other", "userKey": krbdtest.Secret}, errs.Unauthenticated, "client.other"},
		{"locator of another user", named, secrets, errs.Precondition, "client.other"},
	} {
		_, err := r.Attach(t.Context(), node.Target{Locator: c.locator, Secrets: c.secrets}, node.Use{})
		if errs.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "plain words") || strings.Contains(err.Error(), krbdtest.Secret) {
			t.Errorf("%s: %v; want %s, %q", c.name, err, c.kind, c.word)
		}
	}
	target := node.Target{Locator: v, Secrets: secrets}
	attach(t, r.Attacher, target)
	testkit.Must(t, r.Detach(t.Context(), target))
}

// A kernel refuses a key of a type that it does not have.
func TestKeyType(t *testing.T) {
	r := newRig(t, nil)
	v := image("v", r.Create(pool+"/v", size))
	r.Before = func(string, string) error { return fmt.Errorf("%w: %w", kernelcall.ErrKey, unix.EINVAL) }
	for first, word := range map[byte]string{1: "the kernel refuses the image or an option", 2: "--key_type aes"} {
		key := base64.StdEncoding.EncodeToString(append([]byte{first, 0}, make([]byte, 42)...))
		_, err := r.Attach(t.Context(), node.Target{Locator: v, Secrets: map[string]string{"userID": "node", "userKey": key}}, node.Use{})
		if errs.KindOf(err) != errs.Precondition || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), key) {
			t.Errorf("type %d: %v; want Precondition, %q", first, err, word)
		}
	}
	r.Before = func(string, string) error { return unix.ENOPKG }
	_, err := r.Attach(t.Context(), node.Target{Locator: v, Secrets: map[string]string{"userID": "node", "userKey": "AAAA"}}, node.Use{})
	testkit.WantError(t, "Attach without modules", err, errs.Precondition, "authenc and cts")
}

func TestMonitors(t *testing.T) {
	failed := errors.New("no such file")
	var all cephconf.Clusters
	var readError error
	r := newRig(t, func(c *rbd.Config) {
		c.Clusters = func() (cephconf.Clusters, error) { return all, readError }
	})
	v := image("v", r.Create(pool+"/v", size))
	try := func(l access.RBD) error {
		at, err := r.Attach(t.Context(), node.Target{Locator: l}, node.Use{})
		if err == nil {
			err = at.File.Close()
		}
		return err
	}
	testkit.WantError(t, "a cluster without an entry", try(v), errs.Precondition)
	readError = failed
	if err := try(v); errs.KindOf(err) != errs.Unavailable || !errors.Is(err, failed) {
		t.Errorf("an unreadable list: %v", err)
	}
	readError = nil
	all = cephconf.Clusters{{ID: cluster, Monitors: []string{"localhost:99999"}}}
	testkit.WantError(t, "a bad port", try(v), errs.Unavailable)
	all[0].Monitors = []string{"[2001:db8::1]:3300", "192.0.2.9", krbdtest.Monitor}
	testkit.Must(t, try(v))
	lines := r.Lines()
	if want := "[2001:db8::1]:3300,192.0.2.9," + krbdtest.Monitor + " "; len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
		t.Errorf("mapped with %q, want the monitors %s", lines, want)
	}
	testkit.Must(t, r.Detach(context.Background(), node.Target{Locator: v}))
	v.ClusterID, v.Monitors = "", []netip.AddrPort{netip.MustParseAddrPort(krbdtest.Monitor)}
	testkit.Must(t, try(v))
	held := testkit.Value(r.Held(t.Context()))(t)
	if len(held) != 1 || !access.Equal(held[0].Locator, v) {
		t.Errorf("Held: %+v, want the locator %+v", held, v)
	}
	testkit.Must(t, r.Detach(context.Background(), node.Target{Locator: v}))
}
