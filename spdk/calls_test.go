package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

type asked struct {
	Method string
	Params any
}

// serveResult serves a client and returns the same result for all requests.
func serveResult(t *testing.T, result string) (*Client, <-chan asked) {
	t.Helper()
	received := make(chan asked, 10)
	client, _ := serve(t, Config{}, func(p *peer) {
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			a := asked{Method: r.Method}
			if r.Params != nil {
				if err := json.Unmarshal(r.Params, &a.Params); err != nil {
					t.Error(err)
				}
			}
			received <- a
			p.send(`{"jsonrpc":"2.0","id":%d,"result":%s}`, r.ID, result)
		}
	})
	return client, received
}

func object(text string) any {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

const (
	nvmeBdev = `{"name":"nv0n1","aliases":["e33a8f79-5f83-40cc-b7d5-cc0aab47b95d"],"product_name":"NVMe disk","block_size":4096,"num_blocks":32768,
"uuid":"e33a8f79-5f83-40cc-b7d5-cc0aab47b95d","claimed":true,"zoned":false,"supported_io_types":{"read":true},
"driver_specific":{"nvme":[{"trid":{"trtype":"TCP","adrfam":"IPv4","traddr":"127.0.0.1","trsvcid":"4420","subnqn":"nqn.2026-01.io.test:vol1"},
"ctrlr_data":{"cntlid":1,"vendor_id":"0x8086","model_number":"MOD1","serial_number":"SN1","firmware_revision":"26.09","subnqn":"nqn.2026-01.io.test:vol1","oacs":{"security":0},"multi_ctrlr":true},
"vs":{"nvme_version":"2.0"},"ns_data":{"id":1,"can_share":true}}],"mp_policy":"active_passive"}}`
	controller = `{"name":"nv0","ctrlrs":[{"state":"reconnect_is_delayed","trid":{"trtype":"TCP","adrfam":"IPv4","traddr":"127.0.0.1","trsvcid":"4420","subnqn":"nqn.2026-01.io.test:vol1"},
"cntlid":4,"host":{"nqn":"nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111","addr":"","svcid":"","no_shn_notification":false}}]}`
)

func testAddress() NVMeAddress {
	return NVMeAddress{Transport: "TCP", Family: "IPv4", Address: "127.0.0.1", Service: "4420", SubNQN: "nqn.2026-01.io.test:vol1"}
}

func testBdev() Bdev {
	b := Bdev{
		Name: "nv0n1", Aliases: []string{"e33a8f79-5f83-40cc-b7d5-cc0aab47b95d"}, ProductName: "NVMe disk", UUID: "e33a8f79-5f83-40cc-b7d5-cc0aab47b95d",
		BlockSize: 4096, NumBlocks: 32768, Claimed: true, Driver: Driver{NVMe: NVMePaths{{Address: testAddress()}}},
	}
	p := &b.Driver.NVMe[0]
	p.Controller.ControllerID, p.Controller.Model, p.Controller.Serial, p.Controller.SubNQN = 1, "MOD1", "SN1", "nqn.2026-01.io.test:vol1"
	p.Namespace.ID = 1
	return b
}

// The request that each call sends, and the result that it decodes.
func TestCalls(t *testing.T) {
	const trid = `"trtype":"TCP","adrfam":"IPv4","traddr":"127.0.0.1","trsvcid":"4420","subnqn":"nqn.2026-01.io.test:vol1"`
	ever, second, zero := -1, 1, 0
	address := testAddress()
	var wantController NVMeController
	testkit.Must(t, json.Unmarshal([]byte(controller), &wantController))
	ok := func(err error) (any, error) { return nil, err }
	for name, c := range map[string]struct {
		result string
		call   func(context.Context, *Client) (any, error)
		method string
		params string
		want   any
	}{
		"attach": {
			`["nv0n1","nv0n2"]`, func(ctx context.Context, c *Client) (any, error) {
				return c.AttachNVMe(ctx, NVMeAttach{Name: "nv0", NVMeAddress: address})
			}, "bdev_nvme_attach_controller", `{"name":"nv0",` + trid + `}`, []string{"nv0n1", "nv0n2"},
		},
		"attach with all": {
			`[]`, func(ctx context.Context, c *Client) (any, error) {
				return c.AttachNVMe(ctx, NVMeAttach{
					Name: "nv0", NVMeAddress: address, HostNQN: "nqn.h", HostAddress: "10.0.0.1",
					LossTimeout: &ever, ReconnectDelay: &second, FastIOFail: &zero, Multipath: "multipath", IOQueues: 4,
					HeaderDigest: true, DataDigest: true, MaxBdevs: 9, PSK: "p", DHCHAPKey: "k", DHCHAPCtrlKey: "c",
				})
			}, "bdev_nvme_attach_controller", `{"name":"nv0",` + trid + `,"hostnqn":"nqn.h","hostaddr":"10.0.0.1","ctrlr_loss_timeout_sec":-1,"reconnect_delay_sec":1,"fast_io_fail_timeout_sec":0,
				"multipath":"multipath","num_io_queues":4,"hdgst":true,"ddgst":true,"max_bdevs":9,"psk":"p","dhchap_key":"k","dhchap_ctrlr_key":"c"}`, []string{},
		},
		"detach": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.DetachNVMe(ctx, "nv0", nil)) },
			"bdev_nvme_detach_controller", `{"name":"nv0"}`, nil,
		},
		"detach a path": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.DetachNVMe(ctx, "nv0", &address)) },
			"bdev_nvme_detach_controller", `{"name":"nv0",` + trid + `}`, nil,
		},
		"controller": {
			`[` + controller + `]`, func(ctx context.Context, c *Client) (any, error) { return c.NVMeController(ctx, "nv0") },
			"bdev_nvme_get_controllers", `{"name":"nv0"}`, wantController,
		},
		"controllers": {
			`[` + controller + `]`, func(ctx context.Context, c *Client) (any, error) { return c.NVMeControllers(ctx) },
			"bdev_nvme_get_controllers", `null`, []NVMeController{wantController},
		},
		"bdev": {
			`[` + nvmeBdev + `]`, func(ctx context.Context, c *Client) (any, error) { return c.Bdev(ctx, "nv0n1") },
			"bdev_get_bdevs", `{"name":"nv0n1"}`, testBdev(),
		},
		"await bdev": {
			`[` + nvmeBdev + `]`, func(ctx context.Context, c *Client) (any, error) {
				return c.AwaitBdev(ctx, "nv0n1", 1500*time.Millisecond)
			}, "bdev_get_bdevs", `{"name":"nv0n1","timeout":1500}`, testBdev(),
		},
		"await bdev for a moment": {
			`[` + nvmeBdev + `]`, func(ctx context.Context, c *Client) (any, error) { return c.AwaitBdev(ctx, "nv0n1", 0) },
			"bdev_get_bdevs", `{"name":"nv0n1","timeout":1}`, testBdev(),
		},
		"bdevs": {
			`[` + nvmeBdev + `]`, func(ctx context.Context, c *Client) (any, error) { return c.Bdevs(ctx) },
			"bdev_get_bdevs", `null`, []Bdev{testBdev()},
		},
		"bdev of an old release": {
			`[{"name":"x","driver_specific":{"nvme":{"ns_data":{"id":3}}}}]`, func(ctx context.Context, c *Client) (any, error) {
				b, err := c.Bdev(ctx, "x")
				return b.Driver.NVMe[0].Namespace.ID, err
			}, "bdev_get_bdevs", `{"name":"x"}`, uint32(3),
		},
		"bdev on a file": {
			`[{"name":"aio0","block_size":4096,"num_blocks":65536,"driver_specific":{"aio":{"filename":"/var/tmp/disk.img","block_size_override":true,"readonly":false,"fallocate":false,"nowait":false}}}]`,
			func(ctx context.Context, c *Client) (any, error) {
				b, err := c.Bdev(ctx, "aio0")
				return []any{b.Size(), *b.Driver.AIO}, err
			}, "bdev_get_bdevs", `{"name":"aio0"}`, []any{int64(256 << 20), AIODriver{Filename: "/var/tmp/disk.img"}},
		},
		"make an AIO bdev": {
			`"a"`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.CreateAIO(ctx, AIO{Name: "a", Filename: "/f", BlockSize: 512, ReadOnly: true}))
			}, "bdev_aio_create", `{"name":"a","filename":"/f","block_size":512,"readonly":true}`, nil,
		},
		"make an AIO bdev of a device": {
			`"a"`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.CreateAIO(ctx, AIO{Name: "a", Filename: "/dev/x"}))
			}, "bdev_aio_create", `{"name":"a","filename":"/dev/x"}`, nil,
		},
		"delete an AIO bdev": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.DeleteAIO(ctx, "a")) }, "bdev_aio_delete", `{"name":"a"}`, nil,
		},
		"make an RBD bdev": {
			`"r"`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.CreateRBD(ctx, RBD{Name: "r", Pool: "p", Namespace: "n", Image: "i", BlockSize: 512, Cluster: "c", ReadOnly: true}))
			}, "bdev_rbd_create", `{"name":"r","pool_name":"p","namespace_name":"n","rbd_name":"i","block_size":512,"cluster_name":"c","read_only":true}`, nil,
		},
		"delete an RBD bdev": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.DeleteRBD(ctx, "r")) }, "bdev_rbd_delete", `{"name":"r"}`, nil,
		},
		"register a cluster": {
			`"c"`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.RegisterRBDCluster(ctx, RBDCluster{Name: "c", User: "u", Config: map[string]string{"mon_host": "10.0.0.1"}, KeyFile: "/k"}))
			}, "bdev_rbd_register_cluster", `{"name":"c","user_id":"u","config_param":{"mon_host":"10.0.0.1"},"key_file":"/k"}`, nil,
		},
		"a cluster": {
			`{"cluster_name":"c"}`, func(ctx context.Context, c *Client) (any, error) { return c.HasRBDCluster(ctx, "c") }, "bdev_rbd_get_clusters_info", `{"name":"c"}`, true,
		},
		"unregister a cluster": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.UnregisterRBDCluster(ctx, "c")) }, "bdev_rbd_unregister_cluster", `{"name":"c"}`, nil,
		},
		"make a file system device": {
			`"f"`, func(ctx context.Context, c *Client) (any, error) { return ok(c.CreateFsdev(ctx, "f", "/d")) },
			"fsdev_aio_create", `{"name":"f","root_path":"/d"}`, nil,
		},
		"delete a file system device": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.DeleteFsdev(ctx, "f")) }, "fsdev_aio_delete", `{"name":"f"}`, nil,
		},
		"a file system device": {
			`{"name":"f","module_name":"aio","module_specific":{"name":"f","root_path":"/d"}}`, func(ctx context.Context, c *Client) (any, error) {
				f, err := c.Fsdev(ctx, "f")
				return f.Driver.RootPath, err
			}, "fsdev_get_fsdevs", `{"name":"f"}`, "/d",
		},
		"a file system device in a list": {
			` [{"name":"e"},{"name":"f"}]`, func(ctx context.Context, c *Client) (any, error) {
				f, err := c.Fsdev(ctx, "f")
				return f.Name, err
			}, "fsdev_get_fsdevs", `{"name":"f"}`, "f",
		},
		"add a key": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.AddKeyFile(ctx, "k", "/keys/k")) },
			"keyring_file_add_key", `{"name":"k","path":"/keys/k"}`, nil,
		},
		"the keyring": {
			`[{"name":"k","module":"keyring_file","removed":false,"path":"/k"}]`, func(ctx context.Context, c *Client) (any, error) { return c.Keyring(ctx) },
			"keyring_get_keys", `null`, []KeyringEntry{{Name: "k"}},
		},
		"admit a host with keys": {
			`true`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.AddHost(ctx, "n", "h", HostKeys{Host: "k", Target: "t"}))
			}, "nvmf_subsystem_add_host", `{"nqn":"n","host":"h","dhchap_key":"k","dhchap_ctrlr_key":"t"}`, nil,
		},
		"admit a host with TLS": {
			`true`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.AddHost(ctx, "n", "h", HostKeys{TLS: "k"}))
			},
			"nvmf_subsystem_add_host", `{"nqn":"n","host":"h","psk":"k"}`, nil,
		},
		"keep the TLS key of a host": {
			`true`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.SetHostKeys(ctx, "n", "h", HostKeys{TLS: "k"}))
			},
			"nvmf_subsystem_set_keys", `{"nqn":"n","host":"h"}`, nil,
		},
		"listen with TLS": {
			`true`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.AddListener(ctx, "n", Listener{address, true}))
			},
			"nvmf_subsystem_add_listener", `{"nqn":"n","listen_address":{` + trid + `},"secure_channel":true}`, nil,
		},
		"listen": {
			`true`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.AddListener(ctx, "n", Listener{address, false}))
			},
			"nvmf_subsystem_add_listener", `{"nqn":"n","listen_address":{` + trid + `}}`, nil,
		},
		"replace the keys of a host": {
			`true`, func(ctx context.Context, c *Client) (any, error) {
				return ok(c.SetHostKeys(ctx, "n", "h", HostKeys{Host: "k"}))
			}, "nvmf_subsystem_set_keys", `{"nqn":"n","host":"h","dhchap_key":"k"}`, nil,
		},
		"remove a key": {
			`true`, func(ctx context.Context, c *Client) (any, error) { return ok(c.RemoveKey(ctx, "k")) }, "keyring_file_remove_key", `{"name":"k"}`, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, received := serveResult(t, c.result)
			got := testkit.Value(c.call(t.Context(), client))(t)
			testkit.Diff(t, "result", c.want, got)
			testkit.Diff(t, "the request", asked{c.method, object(c.params)}, <-received)
		})
	}
}

// An empty name would return all objects.
func TestLookupByNameRequiresAName(t *testing.T) {
	client, received := serveResult(t, `[]`)
	for name, call := range map[string]func(name string) error{
		"bdev":       func(n string) error { _, err := client.Bdev(t.Context(), n); return err },
		"await":      func(n string) error { _, err := client.AwaitBdev(t.Context(), n, time.Second); return err },
		"controller": func(n string) error { _, err := client.NVMeController(t.Context(), n); return err },
		"fsdev":      func(n string) error { _, err := client.Fsdev(t.Context(), n); return err },
	} {
		if err := call(""); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("%s without a name: %v", name, err)
		}
		if len(received) != 0 {
			t.Errorf("%s without a name was requested: %+v", name, <-received)
		}
		err := call("x")
		<-received
		if name == "fsdev" {
			if !errors.Is(err, NotFound) {
				t.Errorf("%s that is not in the list: %v", name, err)
			}
			continue
		}
		if errs.KindOf(err) != errs.Internal || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
