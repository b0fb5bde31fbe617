package spdk_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// A call that takes long is started, and others are answered meanwhile, also over
// the proxy, which serves one request at a time.
func TestStart(t *testing.T) {
	_, p, c := world(t, spdktest.Config{})
	ctx, file := testkit.Context(t), filepath.Join(testkit.Dir(t), "disk")
	testkit.Must(t, os.WriteFile(file, nil, 0o600), os.Truncate(file, 64<<20),
		c.CreateAIO(ctx, spdk.AIO{Name: "disk", Filename: file, BlockSize: 4096}),
		c.Call(ctx, "bdev_lvol_create_lvstore", map[string]any{"bdev_name": "disk", "lvs_name": "lvs0", "cluster_sz": 1 << 20}, nil))
	store := testkit.Value(c.LvolStores(ctx))(t)[0]
	s := httptest.NewServer(spdktest.Proxy(p.Socket(), "u", "p"))
	t.Cleanup(s.Close)
	password := func() (string, error) { return "p", nil }
	proxied := testkit.Open(spdk.Open(spdk.Config{URL: s.URL, User: "u", Password: password}))(t)
	for name, client := range map[string]*spdk.Client{"socket": c, "proxy": proxied} {
		uuid := testkit.Value(c.CreateLvol(ctx, spdk.LvolCreate{StoreUUID: store.UUID, Name: name, SizeMiB: 4, Thin: true}))(t)
		allocated := func(want int64, thin bool) {
			t.Helper()
			testkit.Eventually(t, name, func() bool {
				b := testkit.Value(client.Bdev(ctx, uuid))(t)
				return b.Driver.Lvol.AllocatedClusters == want && b.Driver.Lvol.Thin == thin
			})
		}
		p.HoldInflate(2)
		testkit.Must(t, client.StartInflate(ctx, uuid))
		allocated(2, true)
		testkit.Must(t, client.StartInflate(ctx, uuid)) // the process refuses it, and goes on
		p.ReleaseInflate()
		allocated(4, false)
	}
	other := testkit.Open(spdk.Open(spdk.Config{URL: s.URL, User: "other", Password: password}))(t)
	is(t, "a wrong user", other.StartInflate(ctx, "x"), errs.Unavailable)
	p.Kill()
	is(t, "no process", c.StartInflate(ctx, "x"), errs.Unavailable)
}
