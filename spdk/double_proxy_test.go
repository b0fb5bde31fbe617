package spdk_test

import (
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// A target is used over HTTP as over its socket, also over its restarts.
func TestDoubleOverHTTP(t *testing.T) {
	_, p, _ := world(t, spdktest.Config{})
	s := httptest.NewServer(spdktest.Proxy(p.Socket(), "spdkcsiuser", "spdkcsipass"))
	t.Cleanup(s.Close)
	config := spdk.Config{URL: s.URL, User: "spdkcsiuser", Password: func() (string, error) { return "spdkcsipass", nil }}
	c := testkit.Open(spdk.Open(config))(t)
	ctx := t.Context()
	is(t, "ready", c.WaitReady(ctx))
	if m, err := c.Methods(ctx); err != nil || !m.Has("nvmf_create_subsystem") {
		t.Errorf("%v, %v", m.Names(), err)
	}
	if names, err := c.AttachNVMe(ctx, attach("größe")); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	_, err := c.NVMeController(ctx, "nv1")
	is(t, "a controller that does not exist", err, spdk.NotFound, errs.NotFound)

	p.Inject(spdktest.Fault{Method: "bdev_nvme_get_controllers", Then: spdktest.Drop, Times: 1})
	_, err = c.NVMeControllers(ctx)
	is(t, "a lost response", err, spdk.Unanswered, errs.Unavailable)

	p.Kill()
	_, err = c.NVMeControllers(ctx)
	is(t, "no process", err, errs.Unavailable)
	testkit.Must(t, p.Start())
	is(t, "ready again", c.WaitReady(ctx))
	if all, err := c.NVMeControllers(ctx); err != nil || len(all) != 0 {
		t.Errorf("controllers of the new process %v, %v", all, err)
	}

	config.User = "other"
	_, err = testkit.Open(spdk.Open(config))(t).NVMeControllers(ctx)
	if is(t, "a wrong user", err, errs.Unauthenticated); errors.Is(err, spdk.Unanswered) {
		t.Errorf("%v: the process did not get the request", err)
	}
}
