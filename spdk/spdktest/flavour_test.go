package spdktest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMethodsAndVersions(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		knows  []string
		not    []string
		major  int
	}{
		"upstream": {Config{}, []string{"keyring_file_add_key", "bdev_nvme_set_keys"}, []string{"fsdev_get_fsdevs", "bdev_rbd_create", "nvme_subsystem_list"}, 26},
		"fork":     {Config{Flavour: Fork}, []string{"fsdev_get_fsdevs", "fsdev_aio_create"}, []string{"keyring_file_add_key", "keyring_get_keys", "bdev_rbd_create"}, 24},
		"SNAP":     {Config{Flavour: Fork, SNAP: true}, []string{"nvme_subsystem_list", "virtio_fs_get_devices"}, []string{"bdev_rbd_create"}, 24},
		"RBD":      {Config{RBD: true}, []string{"bdev_rbd_create", "bdev_rbd_register_cluster"}, nil, 26},
		"less":     {Config{Without: []string{"bdev_get_iostat"}}, []string{"bdev_get_bdevs"}, []string{"bdev_get_iostat"}, 26},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, startProcess(t, NewNetwork(nil), c.config))
			var names []string
			conn.must("rpc_get_methods", with{"current": true}, &names)
			for _, m := range c.knows {
				if !slices.Contains(names, m) {
					t.Errorf("%s is not listed", m)
				}
			}
			for _, m := range c.not {
				if slices.Contains(names, m) {
					t.Errorf("%s is listed", m)
				}
				conn.refused(-32601, m, nil)
			}
			if slices.Contains(names, "framework_start_init") {
				t.Error("start-up methods are listed as current")
			}
			var v struct{ Fields struct{ Major int } }
			conn.must("spdk_get_version", nil, &v)
			if v.Fields.Major != c.major {
				t.Errorf("version %+v", v)
			}
		})
	}
}

func TestKeyring(t *testing.T) {
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o600, "open": 0o640} {
		testkit.Must(t, os.WriteFile(filepath.Join(root, name), []byte("secret"), mode))
	}
	n := NewNetwork(nil)
	n.Put(volume(Namespace{ID: 1}))
	c := dial(t, startProcess(t, n, Config{Root: root}))
	c.refused(-1, "keyring_file_add_key", with{"name": "k", "path": "good"})
	c.refused(-1, "keyring_file_add_key", with{"name": "k", "path": "/open"})
	c.refused(-2, "keyring_file_add_key", with{"name": "k", "path": "/absent"})
	c.refused(-32602, "keyring_file_add_key", with{"name": "k"})
	c.refused(-126, "bdev_nvme_attach_controller", attach(with{"dhchap_key": "k"}))
	c.must("keyring_file_add_key", with{"name": "k", "path": "/good"}, nil)
	c.refused(-17, "keyring_file_add_key", with{"name": "k", "path": "/good"})
	c.must("bdev_nvme_attach_controller", attach(with{"dhchap_key": "k", "psk": "k"}), nil)
	c.must("keyring_file_remove_key", with{"name": "k"}, nil)
	c.refused(-126, "keyring_file_remove_key", with{"name": "k"})
}

// The keys of a host, as in SPDK 26.09 (lib/nvmf/nvmf_rpc.c, lib/nvmf/subsystem.c).
func TestHostKeys(t *testing.T) {
	const nqn = "nqn.2024-01.example:disk"
	root := t.TempDir()
	for _, name := range []string{"old", "new"} {
		testkit.Must(t, os.WriteFile(filepath.Join(root, name), []byte("DHHC-1:00:"+name+":\n"), 0o600))
	}
	n := NewNetwork(nil)
	c := dial(t, startProcess(t, n, Config{Root: root}))
	at := Address{Transport: "TCP", Host: "127.0.0.1", Port: "4420"}
	host := func(more with) with {
		out := with{"nqn": nqn, "host": "nqn.2024-01.example:host"}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	connects := func(key string, want bool) {
		t.Helper()
		s, err := n.Authenticate("nqn.2024-01.example:host", "192.0.2.1", nqn, at, Keys{DHChap: key})
		if (err == nil) != want {
			t.Errorf("connect with %q: %v, want %t", key, err, want)
		}
		if err == nil {
			s.Close()
		}
	}
	c.must("nvmf_create_transport", with{"trtype": "TCP"}, nil)
	c.must("nvmf_create_subsystem", with{"nqn": nqn}, nil)
	c.must("nvmf_subsystem_add_listener", with{"nqn": nqn, "listen_address": with{"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "4420"}}, nil)
	c.refused(-32602, "nvmf_subsystem_add_host", host(with{"dhchap_key": "k"}))
	c.refused(-22, "nvmf_subsystem_set_keys", host(nil))
	c.refused(-22, "keyring_file_add_key", with{"name": "ring:k", "path": "/old"})
	c.must("keyring_file_add_key", with{"name": "k", "path": "/old"}, nil)
	c.refused(-32603, "nvmf_subsystem_add_host", host(with{"dhchap_ctrlr_key": "k"}))
	c.must("nvmf_subsystem_add_host", host(with{"dhchap_key": "k"}), nil)
	connects("", false)
	connects("DHHC-1:00:new:", false)
	connects("DHHC-1:00:old:", true)
	c.must("keyring_file_remove_key", with{"name": "k"}, nil)
	c.must("keyring_file_add_key", with{"name": "k", "path": "/new"}, nil)
	connects("DHHC-1:00:old:", false) // the host has the removed entry
	connects("DHHC-1:00:new:", false)
	var keys []struct {
		Name, Path string
		Removed    bool
		Refcnt     int
	}
	c.must("keyring_get_keys", nil, &keys)
	if len(keys) != 2 || keys[0].Removed || keys[0].Path != "/new" || !keys[1].Removed || keys[1].Name != "k" || keys[1].Refcnt != 1 {
		t.Errorf("keyring %+v", keys)
	}
	c.must("nvmf_subsystem_set_keys", host(with{"dhchap_key": "k"}), nil)
	connects("DHHC-1:00:new:", true)
	if c.must("keyring_get_keys", nil, &keys); len(keys) != 1 {
		t.Errorf("keyring %+v", keys)
	}
	var all []struct{ Hosts []map[string]string }
	c.must("nvmf_get_subsystems", with{"nqn": nqn}, &all)
	if len(all) != 1 || len(all[0].Hosts) != 1 || all[0].Hosts[0]["dhchap_key"] != "k" {
		t.Errorf("subsystem %+v", all)
	}
	c.must("nvmf_subsystem_set_keys", host(nil), nil)
	connects("", true)
}

func TestIOStat(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{}))
	c.must("bdev_malloc_create", with{"name": "m0", "num_blocks": 8, "block_size": 512}, nil)
	var got struct {
		Rate  int `json:"tick_rate"`
		Bdevs []struct{ Name string }
	}
	c.must("bdev_get_iostat", with{"name": "m0"}, &got)
	if got.Rate == 0 || len(got.Bdevs) != 1 || got.Bdevs[0].Name != "m0" {
		t.Errorf("%+v", got)
	}
	c.refused(-19, "bdev_get_iostat", with{"name": "m1"})
}
