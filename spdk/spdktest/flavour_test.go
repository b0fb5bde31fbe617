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

func TestForkTransport(t *testing.T) {
	n := NewNetwork(nil)
	n.Put(volume(Namespace{ID: 1}))
	fork := dial(t, startProcess(t, n, Config{Flavour: Fork}))
	fork.must("bdev_nvme_attach_controller", attach(with{"trtype": "NVDA_TCP"}), nil)
	var shown []struct {
		Driver struct {
			NVMe []struct{ Trid struct{ Trtype string } }
		} `json:"driver_specific"`
	}
	fork.must("bdev_get_bdevs", with{"name": "nv0n1"}, &shown)
	if got := shown[0].Driver.NVMe[0].Trid.Trtype; got != "NVDA_TCP" {
		t.Errorf("trtype %s", got)
	}
	fork.refused(-32603, "bdev_nvme_attach_controller", attach(with{"dhchap_key": "k"}))
	upstream := dial(t, startProcess(t, n, Config{}))
	upstream.refused(-19, "bdev_nvme_attach_controller", attach(with{"trtype": "NVDA_TCP"}))
}

func TestForkFsdevs(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{Flavour: Fork, Root: t.TempDir()}))
	c.must("fsdev_aio_create", with{"name": "fs0", "root_path": "/"}, nil)
	type shown struct {
		Name   string
		Module struct {
			Root string `json:"root_path"`
		} `json:"module_specific"`
	}
	var all []shown
	c.must("fsdev_get_fsdevs", nil, &all)
	var one shown // an object, not a list
	c.must("fsdev_get_fsdevs", with{"name": "fs0"}, &one)
	if len(all) != 1 || all[0] != one || one.Module.Root != "/" {
		t.Errorf("all %+v, one %+v", all, one)
	}
	c.refused(-19, "fsdev_get_fsdevs", with{"name": "fs1"})
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
	c.refused(-2, "keyring_file_remove_key", with{"name": "k"})
}

func TestRBD(t *testing.T) {
	n := NewNetwork(nil)
	n.PutImage(Image{Pool: "rbd", Name: "img", Size: 1 << 20})
	c := dial(t, startProcess(t, n, Config{RBD: true}))
	params := func(more with) with {
		p := with{"pool_name": "rbd", "rbd_name": "img", "block_size": 512}
		for k, v := range more {
			p[k] = v
		}
		return p
	}
	c.refused(-1, "bdev_rbd_create", params(with{"rbd_name": "absent"}))
	c.refused(-1, "bdev_rbd_create", params(with{"cluster_name": "c"}))
	c.must("bdev_rbd_register_cluster", with{"name": "c", "user_id": "cleat", "key_file": "/k"}, nil)
	c.must("bdev_rbd_create", params(with{"name": "b", "cluster_name": "c"}), nil)
	c.refused(-17, "bdev_rbd_create", params(with{"name": "b"}))
	var auto string
	c.must("bdev_rbd_create", params(nil), &auto)
	var shown []struct {
		Blocks int `json:"num_blocks"`
		Driver struct {
			RBD struct {
				Pool string `json:"pool_name"`
			}
		} `json:"driver_specific"`
	}
	c.must("bdev_get_bdevs", with{"name": auto}, &shown)
	if auto != "Ceph0" || shown[0].Blocks != 2048 || shown[0].Driver.RBD.Pool != "rbd" {
		t.Errorf("bdev %s %+v", auto, shown)
	}
	c.refused(-1, "bdev_rbd_register_cluster", with{"name": "c"})
	c.refused(-1, "bdev_rbd_unregister_cluster", with{"name": "c"})
	c.must("bdev_rbd_get_clusters_info", with{"name": "c"}, nil)
	c.must("bdev_rbd_get_clusters_info", nil, nil)
	c.must("bdev_rbd_delete", with{"name": "b"}, nil)
	c.must("bdev_rbd_unregister_cluster", with{"name": "c"}, nil)
	c.refused(-1, "bdev_rbd_unregister_cluster", with{"name": "c"})
	c.refused(-2, "bdev_rbd_get_clusters_info", with{"name": "c"})
	c.refused(-2, "bdev_rbd_get_clusters_info", nil)
	c.refused(-19, "bdev_rbd_delete", with{"name": "b"})
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
