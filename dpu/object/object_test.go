package object

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func TestSettings(t *testing.T) {
	rpc := testkit.Value(spdk.Open(spdk.Config{Socket: "/nowhere"}))(t)
	defer rpc.Close()
	for name, c := range map[string]Config{
		"no process":          {},
		"unknown transport":   {RPC: rpc, TCP: "UDP"},
		"odd block size":      {RPC: rpc, AIOBlockSize: 1000},
		"tiny block size":     {RPC: rpc, AIOBlockSize: 256},
		"huge block size":     {RPC: rpc, AIOBlockSize: 1 << 20},
		"negative block size": {RPC: rpc, AIOBlockSize: -4096},
	} {
		if _, err := New(c); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The requested namespace is found; ambiguous requests fail.
func TestNamespace(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	const other, nguid = "7a3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b02", "0123456789abcdef0123456789abcdef"
	r.target(one, spdktest.Namespace{ID: 3, UUID: uuid}, spdktest.Namespace{ID: 12, UUID: other},
		spdktest.Namespace{ID: 13, UUID: "8b3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b03", NGUID: nguid})
	r.make(controller("c", one))
	r.target("nqn.2016-06.io.spdk:single", spdktest.Namespace{ID: 9, UUID: "9c3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b04"})
	r.make(controller("c1", "nqn.2016-06.io.spdk:single")) // its bdevs are c1n9, not those of c
	for name, c := range map[string]struct {
		controller string
		choice     plan.Choice
		want       string
		words      string
	}{
		"by number":          {"c", plan.Choice{NSID: 12}, "cn12", ""},
		"by UUID":            {"c", plan.Choice{UUID: uuid}, "cn3", ""},
		"by NGUID":           {"c", plan.Choice{NGUID: nguid}, "cn13", ""},
		"by NGUID and UUID":  {"c", plan.Choice{NGUID: nguid, UUID: "8b3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b03"}, "cn13", ""},
		"by all":             {"c", plan.Choice{NSID: 3, UUID: uuid, NGUID: strings.ReplaceAll(uuid, "-", "")}, "cn3", ""},
		"the only one":       {"c1", plan.Choice{}, "c1n9", ""},
		"no choice":          {"c", plan.Choice{}, "", "3 namespaces"},
		"wrong number":       {"c", plan.Choice{NSID: 1}, "", "no namespace with nsId 1"},
		"wrong UUID":         {"c", plan.Choice{UUID: "00000000-0000-0000-0000-000000000001"}, "", "no namespace with uuid"},
		"contradiction":      {"c", plan.Choice{NSID: 3, UUID: other}, "", "another namespace"},
		"UUID of another":    {"c", plan.Choice{UUID: "9c3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b04"}, "", "no namespace with uuid"},
		"NGUID of another":   {"c1", plan.Choice{NGUID: nguid}, "", "no namespace with nguid"},
		"number and another": {"c1", plan.Choice{NSID: 9, UUID: uuid}, "", "another namespace"},
	} {
		got, identity, err := r.Namespace(t.Context(), c.controller, c.choice, nil)
		switch {
		case c.words != "":
			if !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%s: %q, %v; want words %q", name, got, err, c.words)
			}
		case err != nil || got != c.want || identity.NSID == 0 || identity.UUID == "":
			t.Errorf("%s: %q %+v, %v; want %q", name, got, identity, err, c.want)
		}
	}
}

// A namespace that appears after its controller is awaited.
func TestLateNamespace(t *testing.T) {
	for name, choice := range map[string]plan.Choice{"by number": {NSID: 1}, "by UUID": {UUID: uuid}, "the only one": {}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, spdktest.Config{}, func(c *Config) { c.NamespaceWait = 20 * time.Second })
			r.target(one, spdktest.Namespace{ID: 1, UUID: uuid, After: 100 * time.Millisecond})
			out := r.make(controller("c", one))
			got, _, err := r.Namespace(t.Context(), "c", choice, out.Bdevs)
			if err != nil || got != "cn1" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// Keys are passed by their name in the keyring, or as a file without a keyring.
func TestKeys(t *testing.T) {
	key := plan.Object{ID: plan.ID{Kind: plan.Key, Name: "cleat_key_1"}, Key: &plan.KeySpec{File: "psk"}}
	secured := controller("c", one)
	secured.Controller.TLS, secured.Controller.TLSFile = key.Name, "psk"
	write := func(r *rig, mode os.FileMode) {
		r.t.Helper()
		_ = os.Mkdir(filepath.Join(r.dir, "keys"), 0o700)
		testkit.Must(r.t, os.WriteFile(filepath.Join(r.dir, "keys", "psk"), []byte("NVMeTLSkey-1:01:secret:"), mode))
		testkit.Must(r.t, os.Chmod(filepath.Join(r.dir, "keys", "psk"), mode))
	}
	t.Run("keyring", func(t *testing.T) {
		r := newRig(t, spdktest.Config{}, nil)
		r.target(one, spdktest.Namespace{ID: 1})
		write(r, 0o644)
		if _, err := r.Ensure(t.Context(), key, nil); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "mode 0600") {
			t.Errorf("a world-readable key: %v", err)
		}
		write(r, 0o600)
		if r.make(key).Found || !r.make(key).Found {
			t.Error("it is found the second time")
		}
		r.make(secured)
		if p := r.params("bdev_nvme_attach_controller"); !strings.Contains(p, `"psk":"cleat_key_1"`) || strings.Contains(p, "secret") {
			t.Errorf("attached with %s", p)
		}
		testkit.Must(r.t, r.Remove(t.Context(), key))
		testkit.Must(r.t, r.Remove(t.Context(), key))
	})
	t.Run("file", func(t *testing.T) {
		r := newRig(t, spdktest.Config{Flavour: spdktest.Fork}, nil)
		r.target(one, spdktest.Namespace{ID: 1})
		write(r, 0o600)
		r.make(key)
		r.make(secured)
		if p := r.params("bdev_nvme_attach_controller"); !strings.Contains(p, `"psk":"`+filepath.Join(r.dir, "keys", "psk")+`"`) {
			t.Errorf("attached with %s", p)
		}
		testkit.Must(r.t, r.Remove(t.Context(), key))
		testkit.Must(r.t, r.Remove(t.Context(), controller("c", one)))
		chap := controller("c", one)
		chap.Controller.DHChap = key.Name
		if _, err := r.Ensure(t.Context(), chap, nil); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "DH-HMAC-CHAP") {
			t.Errorf("DH-HMAC-CHAP without a keyring: %v", err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		r := newRig(t, spdktest.Config{}, func(c *Config) { c.KeyDir = "" })
		if _, err := r.Ensure(t.Context(), key, nil); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "--key-dir") {
			t.Errorf("%v", err)
		}
	})
}

func TestRBD(t *testing.T) {
	r := newRig(t, spdktest.Config{RBD: true}, nil)
	r.network.PutImage(spdktest.Image{Pool: "rbd", Name: "image"})
	cluster := plan.Object{ID: plan.ID{Kind: plan.RBDCluster, Name: "ceph"}, RBDCluster: &plan.RBDClusterSpec{Ceph: access.Ceph{ClusterID: "east", User: "dpu", Key: "dpu.key"}}}
	r.make(cluster)
	p := r.params("bdev_rbd_register_cluster")
	for _, word := range []string{`"config_file":"/etc/ceph/east.conf"`, `"user_id":"dpu"`, `"key_file":"` + filepath.Join(r.dir, "keys", "dpu.key")} {
		if !strings.Contains(p, word) {
			t.Errorf("registered with %s, want %s", p, word)
		}
	}
	bdev := plan.Object{ID: plan.ID{Kind: plan.RBD, Name: "b"}, RBD: &plan.RBDSpec{Cluster: "ceph", Pool: "rbd", Image: "image", ReadOnly: true}}
	r.make(bdev)
	if !r.make(bdev).Found {
		t.Error("it is there the second time")
	}
	other := bdev
	other.RBD = &plan.RBDSpec{Cluster: "ceph", Pool: "rbd", Image: "another"}
	if _, err := r.Ensure(t.Context(), other, nil); !errors.Is(err, ErrNameConflict) {
		t.Errorf("another image under the name: %v", err)
	}
	state, err := r.Look(t.Context(), Shown{Name: "b", Object: bdev})
	if err != nil || !state.Held {
		t.Errorf("%+v, %v", state, err)
	}
	state, err = r.Look(t.Context(), Shown{Name: "b", Object: other})
	if err != nil || state.Held || state.Why == "" {
		t.Errorf("%+v, %v", state, err)
	}
	for range 2 {
		testkit.Must(r.t, r.Remove(t.Context(), bdev))
		testkit.Must(r.t, r.Remove(t.Context(), cluster))
	}
	bare := newRig(t, spdktest.Config{}, nil)
	if _, err := bare.Ensure(t.Context(), cluster, nil); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "without Ceph RBD") {
		t.Errorf("a process without RBD: %v", err)
	}
	testkit.Must(bare.t, bare.Remove(t.Context(), bdev))
}

// unreadable is a pool whose files cannot be looked up.
type unreadable struct{ err error }

func (u unreadable) File(access.File) (string, error) {
	return "", errs.Errorf(errs.Precondition, "pool: %w", u.err)
}

// A pool that cannot be read does not show that SNAP has lost the device.
func TestLookWithAnUnreadablePool(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	o := plan.Object{ID: plan.ID{Kind: plan.AIO, Name: "a"}, AIO: &plan.AIOSpec{File: access.File{Name: "disk"}}}
	testkit.Must(t, os.WriteFile(filepath.Join(r.dir, "disk"), make([]byte, 1<<20), 0o600))
	r.make(o)
	for _, c := range []struct {
		err     error
		unknown bool
	}{{unix.EIO, true}, {unix.EMFILE, true}, {unix.ENOENT, false}, {unix.ELOOP, false}, {errors.New("pool x does not exist"), false}} {
		r.config.Pools = unreadable{c.err}
		state, err := r.Look(t.Context(), Shown{Name: "a", Object: o})
		if c.unknown != (err != nil) || state.Held || !c.unknown && state.Why == "" {
			t.Errorf("%v: %+v, %v", c.err, state, err)
		}
	}
}

// A file that another bdev uses is refused, and this plugin's bdev on another
// file is unchanged.
func TestAIO(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	for _, name := range []string{"a", "b"} {
		testkit.Must(r.t, os.WriteFile(filepath.Join(r.dir, name), make([]byte, 1<<20), 0o600))
	}
	aio := func(bdev, file string) plan.Object {
		return plan.Object{ID: plan.ID{Kind: plan.AIO, Name: bdev}, AIO: &plan.AIOSpec{File: access.File{Name: file}}}
	}
	r.make(aio("x", "a"))
	if p := r.params("bdev_aio_create"); !strings.Contains(p, `"block_size":4096`) {
		t.Errorf("created with %s", p)
	}
	if _, err := r.Ensure(t.Context(), aio("y", "a"), nil); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "already used by bdev x") {
		t.Errorf("a second bdev on the file: %v", err)
	}
	if _, err := r.Ensure(t.Context(), aio("x", "b"), nil); !errors.Is(err, ErrNameConflict) {
		t.Errorf("the name on another file: %v", err)
	}
	if _, err := r.Ensure(t.Context(), aio("z", "absent"), nil); !errors.Is(err, errs.Precondition) {
		t.Errorf("no file: %v", err)
	}
	testkit.Must(r.t, r.Remove(t.Context(), aio("x", "a")))
}

// The name of a file system device belongs to one directory.
func TestFsdev(t *testing.T) {
	for name, c := range map[string]spdktest.Config{"listed": {Flavour: spdktest.Fork}, "not listed": {}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c, nil)
			mount := func(name string) plan.Object {
				return plan.Object{ID: plan.ID{Kind: plan.Mount, Name: name}, Mount: &plan.MountSpec{}}
			}
			fsdev := func(mount string) plan.Object {
				return plan.Object{ID: plan.ID{Kind: plan.AIOFsdev, Name: "f"}, Fsdev: &plan.FsdevSpec{Mount: mount}}
			}
			r.make(mount("m"))
			r.make(mount("n"))
			if r.make(fsdev("m")).Found || !r.make(fsdev("m")).Found {
				t.Error("it is found the second time")
			}
			_, err := r.Ensure(t.Context(), fsdev("n"), nil)
			if listed := c.Flavour == spdktest.Fork; listed != errors.Is(err, ErrNameConflict) {
				t.Errorf("the name with another directory: %v", err)
			}
			if _, err := r.Ensure(t.Context(), plan.Object{ID: plan.ID{Kind: plan.AIOFsdev, Name: "g"}, Fsdev: &plan.FsdevSpec{Mount: "absent"}}, nil); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "HostToContainer") {
				t.Errorf("a directory that SNAP does not see: %v", err)
			}
			for range 2 {
				testkit.Must(r.t, r.Remove(t.Context(), fsdev("m")))
			}
		})
	}
}

// TestAttaching records each path before its attach; a failed record prevents
// it.
func TestAttaching(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, spdktest.Namespace{ID: 1})
	c := controller("c", one)
	refused := errors.New("not recorded")
	if _, err := r.Ensure(t.Context(), c, func(context.Context, netip.AddrPort) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v, want %v", err, refused)
	}
	attached := func(path string, exists, hasPath bool) {
		t.Helper()
		gotExists, gotPath, err := r.Attached(t.Context(), c, netip.MustParseAddrPort(path))
		if err != nil || gotExists != exists || gotPath != hasPath {
			t.Errorf("path %s: got %t, %t, %v, want %t, %t", path, gotExists, gotPath, err, exists, hasPath)
		}
	}
	attached("192.0.2.1:4420", false, false)
	var recorded []netip.AddrPort
	if _, err := r.Ensure(t.Context(), c, func(_ context.Context, path netip.AddrPort) error {
		recorded = append(recorded, path)
		return nil
	}); err != nil || !slices.Equal(recorded, c.Controller.Paths) {
		t.Errorf("recorded %v, want %v: %v", recorded, c.Controller.Paths, err)
	}
	attached("192.0.2.1:4420", true, true)
	attached("192.0.2.2:4420", true, false)
	r.snap.Kill()
	if _, _, err := r.Attached(t.Context(), c, c.Controller.Paths[0]); err == nil {
		t.Error("no error without a process")
	}
}

// Objects that SNAP exposes to a host are not removed.
func TestRemoveOfWhatIsExposed(t *testing.T) {
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, spdktest.Namespace{ID: 1, UUID: uuid})
	c := controller("c", one)
	r.make(c)
	const emulated = "nqn.2022-10.io.nvda.nvme:dpf-x"
	testkit.Must(r.t, r.rpc.Do(t.Context(), "nvme_subsystem_create", map[string]any{"nqn": emulated}))
	testkit.Must(r.t, r.rpc.Do(t.Context(), "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": emulated, "nsid": 1, "uuid": uuid, "bdev_name": "cn1"}))
	if err := r.Remove(t.Context(), c); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), emulated) {
		t.Errorf("%v", err)
	}
	if where, err := r.Exposed(t.Context(), plan.Controller, "cn1"); err != nil || where == "" {
		t.Errorf("%q, %v", where, err)
	}
	testkit.Must(r.t, r.rpc.Do(t.Context(), "nvme_namespace_destroy", map[string]any{"nqn": emulated, "nsid": 1}))
	testkit.Must(r.t, r.Remove(t.Context(), c))
}

// Before its initialisation SNAP has none of the methods that create and expose
// devices: then nothing is known of what it supports and a host sees, and afterwards
// that is not remembered.
func TestSNAPStarts(t *testing.T) {
	r := newRig(t, spdktest.Config{Flavour: spdktest.Fork, SNAP: true, WaitForRPC: true}, nil)
	for _, kind := range []plan.Kind{plan.Controller, plan.AIOFsdev} {
		if where, err := r.Exposed(t.Context(), kind, "disk"); errs.KindOf(err) != errs.Unavailable {
			t.Errorf("exposure of a %s before the initialisation: %q, %v", kind, where, err)
		}
	}
	if a, err := r.Abilities(t.Context()); errs.KindOf(err) != errs.Unavailable {
		t.Errorf("abilities before the initialisation: %+v, %v", a, err)
	}
	node := testkit.Open(spdk.Open(spdk.Config{Socket: r.rpc.Socket()}))(t)
	testkit.Must(t, node.Call(t.Context(), "framework_start_init", nil, nil),
		node.Call(t.Context(), "bdev_malloc_create", map[string]any{"name": "disk", "num_blocks": 1024, "block_size": 512}, nil),
		node.Call(t.Context(), "nvme_subsystem_create", map[string]any{"nqn": one}, nil),
		node.Call(t.Context(), "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": one, "nsid": 1, "uuid": uuid, "bdev_name": "disk"}, nil))
	if where, err := r.Exposed(t.Context(), plan.Controller, "disk"); err != nil || where == "" {
		t.Errorf("exposure after the initialisation: %q, %v", where, err)
	}
	if a, err := r.Abilities(t.Context()); err != nil || !a.NVMe {
		t.Errorf("abilities after the initialisation: %+v, %v", a, err)
	}
}
