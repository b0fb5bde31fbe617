package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

func flavours() map[string]spdktest.Config {
	return map[string]spdktest.Config{
		"SPDK":          {RBD: true},
		"SNAP":          {Flavour: spdktest.Fork, SNAP: true},
		"SNAP 5":        {Flavour: spdktest.Fork, SNAP: true, Envelope: true},
		"SNAP upstream": {SNAP: true, RBD: true},
	}
}

// Devices of each kind survive a restart of the plugin, are recreated after a
// restart of SNAP, and deleted completely.
func TestDeviceLifecycle(t *testing.T) {
	for name, c := range flavours() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c, nil)
			r.target("nqn.2016-06.io.spdk:one", 1)
			r.pools.make(t, "disk")
			kinds := []request.Create{
				nvme("pvc-nvme", "nqn.2016-06.io.spdk:one"),
				local("pvc-aio", "disk", request.Block),
				local("pvc-dir", "tree", request.Filesystem),
				nfs("pvc-nfs"),
			}
			if c.RBD {
				r.network.PutImage(spdktest.Image{Pool: "rbd", Name: "image"})
				q := nvme("pvc-rbd", "")
				q.Contexts.Volume = map[string]string{"monitors": "192.0.2.5", "pool": "rbd", "imageName": "image", "cephUser": "dpu"}
				kinds = append(kinds, q)
			}
			names := map[string]string{}
			for _, q := range kinds {
				names[q.Volume] = r.create(q)
			}
			check := func(what string) {
				t.Helper()
				for _, q := range kinds {
					if got := r.create(q); got != names[q.Volume] {
						t.Errorf("%s: volume %s has device %s, it had %s", what, q.Volume, got, names[q.Volume])
					}
					r.has(q.Volume, names[q.Volume])
				}
			}
			check("a retry")
			r.restart()
			check("after a restart of the plugin")
			testkit.Must(r.t, r.snap.Restart())
			for _, q := range kinds {
				r.hasNot(q.Volume, names[q.Volume])
			}
			check("after a restart of SNAP")
			for i, q := range kinds {
				name := names[q.Volume]
				if i%2 == 1 {
					name = "" // the node driver might have lost it
				}
				r.delete(q.Volume, name)
				r.hasNot(q.Volume, names[q.Volume])
				r.delete(q.Volume, name)
			}
			r.empty()
		})
	}
}

// A shared controller is removed with its last volume.
func TestSharedController(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	const nqn = "nqn.2016-06.io.spdk:shared"
	r.target(nqn, 3)
	a := r.create(nvme("a", nqn, "nsId", "1"))
	b := r.create(nvme("b", nqn, "uuid", uuidOf(nqn, 2)))
	c := r.create(nvme("c", nqn, "nguid", strings.ReplaceAll(uuidOf(nqn, 3), "-", "")))
	if got := r.controllers(); len(got) != 1 {
		t.Fatalf("controllers %q, want one", got)
	}
	controller := r.controllers()[0]
	for i, name := range []string{a, b, c} {
		if want := controller + "n" + string(rune('1'+i)); name != want {
			t.Errorf("device %s, want %s", name, want)
		}
	}
	r.delete("a", a)
	r.hasNot("a", a)
	r.has("b", b)
	r.has("c", c)
	r.delete("b", "")
	r.has("c", c)
	r.delete("c", c)
	r.empty()
}

// A volume never gets the namespace of another volume.
func TestNamespaceOfAnother(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	const nqn = "nqn.2016-06.io.spdk:shared"
	r.target(nqn, 2)
	r.refused(nvme("vague", nqn), "2 namespaces", "nsId, uuid or nguid", uuidOf(nqn, 1))
	r.empty()
	name := r.create(nvme("a", nqn, "nsId", "1"))
	r.refused(nvme("b", nqn, "uuid", uuidOf(nqn, 1)), "already belongs to volume a")
	r.refused(nvme("c", nqn, "nsId", "2", "uuid", uuidOf(nqn, 1)), "another namespace")
	r.refused(nvme("d", nqn, "nsId", "7"), "no namespace with nsId 7", "1 with UUID")
	for _, v := range []string{"b", "c", "d"} {
		r.hasNot(v, "")
		r.delete(v, "")
	}
	r.has("a", name)
	// A subsystem without visible namespaces leaves nothing.
	r.target("nqn.2016-06.io.spdk:none", 0)
	r.refused(nvme("e", "nqn.2016-06.io.spdk:none"), "no namespace", "it has no namespaces")
	r.delete("a", name)
	r.empty()
}

func TestRetriesThatAreForAnotherDevice(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target("nqn.2016-06.io.spdk:one", 1)
	q := nvme("v", "nqn.2016-06.io.spdk:one")
	name := r.create(q)
	other := q
	other.Modes = []storagev1.AccessMode{rwo, rwx}
	r.refused(other, "[RWO]", "[RWO RWX]")
	other.Modes = nil
	r.refused(other, "[RWO]", "[]")
	other = q
	other.Mode = request.Filesystem
	r.refused(other, "Block", "Filesystem")
	other = q
	other.Contexts = request.Contexts{Volume: map[string]string{"nqn": "nqn.2016-06.io.spdk:two"}}
	if got := r.create(other); got != name {
		t.Errorf("a retry with other contexts: device %s, want %s", got, name)
	}
	r.has("v", name)
	r.delete("v", "another name")
	r.has("v", name)
	r.delete("v", name)
	r.empty()
}

// Failed calls leave no objects.
func TestRefusals(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.pools.make(t, "disk")
	r.target("nqn.2016-06.io.spdk:one", 1)
	err := r.refused(nvme("v", "nqn.2016-06.io.spdk:absent"), "the target is down", "path 192.0.2.1:4420")
	if !errors.Is(err, spdk.Unreachable) {
		t.Errorf("%v", err)
	}
	q := nvme("v", "")
	delete(q.Contexts.Volume, "nqn")
	r.refused(q, "nqn is missing")
	q.Contexts.Volume = nil
	r.refused(q, "targetType")
	r.refused(local("v", "absent", request.Block), "absent")
	mismatch := nvme("v", "nqn.2016-06.io.spdk:one")
	mismatch.Mode = request.Filesystem
	r.refused(mismatch, "does not support a locator")
	r.create(local("owner", "disk", request.Block))
	r.refused(local("v", "disk", request.Block), "already in use", "owner")
	r.mounts.fail = errs.Errorf(errs.Unavailable, "the server is away")
	r.refused(nfs("v"), "the server is away")
	r.hasNot("v", "")
	r.delete("owner", "")
	r.empty()
}

// An unsupported volume mode is ErrUnsupported, without calls to the process.
func TestUnsupportedVolumeMode(t *testing.T) {
	r := newRig(t, spdktest.Config{Without: []string{"fsdev_aio_create", "fsdev_aio_delete"}}, nil)
	offer, err := r.plugin.Offer(t.Context())
	if err != nil || offer != (Offer{Block: true}) {
		t.Errorf("%+v, %v", offer, err)
	}
	if err := r.refused(nfs("v")); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	if len(r.mounts.names()) > 0 {
		t.Errorf("mounts %q", r.mounts.names())
	}
}

func TestAttachParameters(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	const nqn = "nqn.2016-06.io.spdk:one"
	s := r.target(nqn, 1)
	s.Addresses = append(s.Addresses, spdktest.Address{Transport: "TCP", Host: "2001:db8::1", Port: "4421"})
	r.network.Put(s)
	r.create(nvme("v", nqn, "connections", `[{"ip":"192.0.2.1","port":4420},{"ip":"2001:db8::1","port":"4421"}]`, "targetAddr", "", "targetPort", "",
		"ctrlLossTmo", "60", "reconnectDelay", "3", "hdgst", "true", "nrIoQueues", "4"))
	r.awaitCall("bdev_nvme_attach_controller", 2)
	want := map[string]any{
		"trtype": "TCP", "adrfam": "IPv6", "traddr": "2001:db8::1", "trsvcid": "4421", "subnqn": nqn, "hostnqn": host,
		"ctrlr_loss_timeout_sec": 60.0, "reconnect_delay_sec": 3.0, "fast_io_fail_timeout_sec": 0.0, "hdgst": true, "num_io_queues": 4.0,
		"multipath": "multipath", "max_bdevs": 1024.0,
	}
	got := r.params("bdev_nvme_attach_controller")
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s is %v, want %v", key, got[key], value)
		}
	}
	testkit.EventuallyNil(r.t, "both paths are attached", func() error {
		if n := len(ask[[]spdk.NVMeController](r, "bdev_nvme_get_controllers", nil)[0].Paths); n != 2 {
			return fmt.Errorf("%d paths", n)
		}
		return nil
	})
}

// Without a namespace in the context the only one is found, without listing all
// bdevs.
func TestOnlyNamespaceWithoutAList(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	r.has("v", r.create(nvme("v", one)))
	for _, c := range r.snap.Calls() {
		if c.Method == "bdev_get_bdevs" && !strings.Contains(string(c.Params), `"name"`) {
			t.Errorf("all bdevs were listed: %s", c.Params)
		}
	}
}

// NVIDIA's processes use their own transport if available.
func TestTransportAlias(t *testing.T) {
	r := newRig(t, spdktest.Config{Flavour: spdktest.Fork, SNAP: true}, nil)
	r.target("nqn.2016-06.io.spdk:one", 1)
	r.create(nvme("v", "nqn.2016-06.io.spdk:one"))
	if got := r.params("bdev_nvme_attach_controller")["trtype"]; got != "NVDA_TCP" {
		t.Errorf("trtype %v", got)
	}
	r = newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target("nqn.2016-06.io.spdk:one", 1)
	r.create(nvme("v", "nqn.2016-06.io.spdk:one"))
	var tried []any
	for _, c := range r.snap.Calls() {
		if c.Method == "bdev_nvme_attach_controller" {
			tried = append(tried, strings.Contains(string(c.Params), "NVDA_TCP"))
		}
	}
	if !slices.Equal(tried, []any{true, false}) {
		t.Errorf("tried the alias: %v", tried)
	}
}

// SNAP reports a wrong key like an unreachable target.
func TestAttachErrorNamesKeys(t *testing.T) {
	t.Parallel()
	keys := t.TempDir()
	r := newRig(t, spdktest.Config{}, func(_ *Config, c *object.Config) { c.KeyDir = keys })
	testkit.Must(r.t, os.WriteFile(filepath.Join(keys, "k"), []byte("not a key"), 0o600))
	for key, words := range map[string]string{"tlsKey": "or refuses the TLS key", "dhchapKey": "or refuses the DH-HMAC-CHAP key"} {
		r.refused(nvme(key, "nqn.2016-06.io.spdk:absent", key, "k"), "the target is down", words)
	}
	r.refused(nvme("both", "nqn.2016-06.io.spdk:absent", "tlsKey", "k", "dhchapKey", "k"), "or refuses a DH-HMAC-CHAP or TLS key")
	if err := r.refused(nvme("none", "nqn.2016-06.io.spdk:absent"), "the target is down"); strings.Contains(err.Error(), "key") {
		t.Errorf("a volume without keys: %v", err)
	}
}

func TestMisspeltKeysAreLogged(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	r := newRig(t, spdktest.Config{}, func(c *Config, _ *object.Config) { c.Logger = log.Logger() })
	r.target(one, 1)
	r.create(nvme("v", one, "dhchap", "k"))
	if !strings.Contains(log.String(), "dhchapKey?") {
		t.Errorf("the log has no word of the key dhchap: %s", log.String())
	}
	q := nvme("w", "", "nqm", one)
	delete(q.Contexts.Volume, "nqn")
	r.refused(q, "nqn is missing", "nqm")
}
