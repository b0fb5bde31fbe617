package spdk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	subNQN  = "nqn.2026-01.io.test:vol1"
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
	nsUUID  = "e33a8f79-5f83-40cc-b7d5-cc0aab47b95d"
)

func world(t *testing.T, c spdktest.Config) (*spdktest.Network, *spdktest.Process, *spdk.Client) {
	t.Helper()
	dir := testkit.Dir(t)
	n := spdktest.NewNetwork(nil)
	n.Put(spdktest.Subsystem{
		NQN: subNQN, Hosts: []string{hostNQN}, Addresses: []spdktest.Address{{Transport: "TCP", Host: "192.0.2.1", Port: "4420"}},
		Namespaces: []spdktest.Namespace{{ID: 1, UUID: nsUUID, BlockSize: 4096, Blocks: 1 << 18}},
	})
	c.Socket = filepath.Join(dir, "spdk.sock")
	p := testkit.Open(n.Start(c))(t)
	client := testkit.Open(spdk.Open(spdk.Config{Socket: c.Socket}))(t)
	return n, p, client
}

func attach(name string) spdk.NVMeAttach {
	return spdk.NVMeAttach{
		Name: name, HostNQN: hostNQN,
		NVMeAddress: spdk.NVMeAddress{Transport: "TCP", Family: "IPv4", Address: "192.0.2.1", Service: "4420", SubNQN: subNQN},
	}
}

func is(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v is not %q", what, err, w)
		}
	}
	if len(want) == 0 && err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestDoubleNVMe(t *testing.T) {
	n, _, c := world(t, spdktest.Config{})
	ctx := t.Context()
	is(t, "ready", c.WaitReady(ctx))
	if v, err := c.Version(ctx); err != nil || v.Major != 26 || v.Minor != 9 {
		t.Errorf("%+v, %v", v, err)
	}
	if m, err := c.Methods(ctx); err != nil || !m.Has("bdev_nvme_attach_controller", "keyring_file_add_key") || m.Has("fsdev_get_fsdevs") {
		t.Errorf("%v, %v", m.Names(), err)
	}

	_, err := c.NVMeController(ctx, "nv0")
	is(t, "a controller before there is one", err, spdk.NotFound, errs.NotFound)
	if all, err := c.NVMeControllers(ctx); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	full := attach("nv0")
	loss, delay := -1, 1
	full.LossTimeout, full.ReconnectDelay = &loss, &delay
	names, err := c.AttachNVMe(ctx, full)
	if err != nil || !slices.Equal(names, []string{"nv0n1"}) {
		t.Fatalf("%v, %v", names, err)
	}
	_, err = c.AttachNVMe(ctx, full)
	is(t, "the same again", err, spdk.Exists, spdk.SamePath, errs.Exists)
	_, err = c.AttachNVMe(ctx, attach("nv1"))
	is(t, "under another name", err, spdk.Exists, spdk.OtherName)
	closed := attach("nv2")
	closed.Service, closed.SubNQN = "4421", subNQN+"x"
	_, err = c.AttachNVMe(ctx, closed)
	is(t, "a closed port", err, spdk.Unreachable, errs.Unavailable)
	if errors.Is(err, spdk.Unanswered) {
		t.Errorf("%v was answered", err)
	}
	strange := attach("nv2")
	strange.Transport = "NVDA_TCP"
	_, err = c.AttachNVMe(ctx, strange)
	is(t, "the fork's transport", err, spdk.NoTransport, errs.Unsupported)

	for _, name := range []string{"nv0n1", nsUUID} {
		b, err := c.AwaitBdev(ctx, name, time.Second)
		if err != nil || b.Name != "nv0n1" || b.UUID != nsUUID || b.Size() != 1<<30 || len(b.Driver.NVMe) != 1 ||
			b.Driver.NVMe[0].Namespace.ID != 1 || b.Driver.NVMe[0].Address.SubNQN != subNQN {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
	_, err = c.AwaitBdev(ctx, "nv0n2", 10*time.Millisecond)
	is(t, "a namespace that does not come", err, spdk.NotFound, spdk.TimedOut, errs.NotFound)
	_, err = c.Bdev(ctx, "nv0n2")
	is(t, "a bdev that is not there", err, spdk.NotFound)
	got, err := c.NVMeController(ctx, "nv0")
	if err != nil || len(got.Paths) != 1 || got.Paths[0].State != spdk.ControllerEnabled || got.Paths[0].Host.NQN != hostNQN || got.Paths[0].Address != full.NVMeAddress {
		t.Errorf("%+v, %v", got, err)
	}

	is(t, "detach a path it does not have", c.DetachNVMe(ctx, "nv0", &closed.NVMeAddress), spdk.NotFound, spdk.NoPath)
	is(t, "detach", c.DetachNVMe(ctx, "nv0", nil))
	is(t, "detach again", c.DetachNVMe(ctx, "nv0", nil), spdk.NotFound)
	if held := n.Controllers(subNQN); len(held) != 0 {
		t.Errorf("sessions %v after the detach", held)
	}
}

func TestDoubleFiles(t *testing.T) {
	_, _, c := world(t, spdktest.Config{})
	ctx := t.Context()
	dir := t.TempDir()
	file := filepath.Join(dir, "disk")
	testkit.Must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	disk := spdk.AIO{Name: "a", Filename: file, BlockSize: 4096}
	is(t, "AIO", c.CreateAIO(ctx, disk))
	is(t, "AIO again", c.CreateAIO(ctx, disk), spdk.Exists)
	if b, err := c.Bdev(ctx, "a"); err != nil || b.Size() != 1<<20 || b.Driver.AIO == nil || b.Driver.AIO.Filename != file {
		t.Errorf("%+v, %v", b, err)
	}
	is(t, "AIO without a file", c.CreateAIO(ctx, spdk.AIO{Name: "b", Filename: file + "x", BlockSize: 4096}), spdk.NoFile)
	is(t, "AIO deleted", c.DeleteAIO(ctx, "a"))
	is(t, "AIO deleted again", c.DeleteAIO(ctx, "a"), spdk.NotFound)

	is(t, "fsdev", c.CreateFsdev(ctx, "f", dir))
	is(t, "fsdev again", c.CreateFsdev(ctx, "f", dir), spdk.Exists)
	is(t, "fsdev without a directory", c.CreateFsdev(ctx, "g", dir+"x"), spdk.NoFile)
	_, err := c.Fsdev(ctx, "f")
	is(t, "upstream cannot list them", err, spdk.UnknownMethod, errs.Unsupported)
	is(t, "fsdev deleted", c.DeleteFsdev(ctx, "f"))
	is(t, "fsdev deleted again", c.DeleteFsdev(ctx, "f"), spdk.NotFound)

	is(t, "key", c.AddKeyFile(ctx, "k", file))
	is(t, "key again", c.AddKeyFile(ctx, "k", file), spdk.Exists)
	testkit.Must(t, os.Chmod(file, 0o644))
	is(t, "world-readable key", c.AddKeyFile(ctx, "l", file), spdk.Denied)
	is(t, "key removed", c.RemoveKey(ctx, "k"))
	is(t, "key removed again", c.RemoveKey(ctx, "k"), spdk.NotFound)
	missing := attach("nv0")
	missing.DHCHAPKey = "k"
	_, err = c.AttachNVMe(ctx, missing)
	is(t, "attach with a key that is not there", err, spdk.NoKey)

	is(t, "process without RBD", c.CreateRBD(ctx, spdk.RBD{Name: "r", Pool: "p", Image: "i", BlockSize: 512}), spdk.UnknownMethod)
}

func TestDoubleFork(t *testing.T) {
	_, _, c := world(t, spdktest.Config{Flavour: spdktest.Fork})
	ctx := t.Context()
	is(t, "ready", c.WaitReady(ctx))
	if v, err := c.Version(ctx); err != nil || v.Major != 24 || v.Minor != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	dir := t.TempDir()
	is(t, "fsdev", c.CreateFsdev(ctx, "f", dir))
	if f, err := c.Fsdev(ctx, "f"); err != nil || f.Name != "f" {
		t.Errorf("%+v, %v", f, err)
	}
	_, err := c.Fsdev(ctx, "g")
	is(t, "a device that is not there", err, spdk.NotFound)
	is(t, "no keyring", c.AddKeyFile(ctx, "k", "/k"), spdk.UnknownMethod)
	dhchap := attach("nv0")
	dhchap.DHCHAPKey = "k"
	_, err = c.AttachNVMe(ctx, dhchap)
	is(t, "a parameter it does not know", err, spdk.BadParams)
	nvda := attach("nv0")
	nvda.Transport = "NVDA_TCP"
	if names, err := c.AttachNVMe(ctx, nvda); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestDoubleRBD(t *testing.T) {
	n, _, c := world(t, spdktest.Config{RBD: true})
	n.PutImage(spdktest.Image{Pool: "p", Name: "i", Size: 1 << 20})
	ctx := t.Context()
	is(t, "RBD", c.CreateRBD(ctx, spdk.RBD{Name: "r", Pool: "p", Image: "i", BlockSize: 512}))
	if b, err := c.Bdev(ctx, "r"); err != nil || b.Size() != 1<<20 || b.Driver.RBD == nil || b.Driver.RBD.Image != "i" {
		t.Errorf("%+v, %v", b, err)
	}
	is(t, "RBD deleted", c.DeleteRBD(ctx, "r"))
	is(t, "RBD deleted again", c.DeleteRBD(ctx, "r"), spdk.NotFound)
}

// An attach whose response is lost is Unanswered, but completed.
func TestDoubleUnansweredAttach(t *testing.T) {
	_, p, c := world(t, spdktest.Config{})
	p.Inject(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Then: spdktest.Drop})
	_, err := c.AttachNVMe(t.Context(), attach("nv0"))
	is(t, "attach", err, spdk.Unanswered, errs.Unavailable)
	if _, err := c.NVMeController(t.Context(), "nv0"); err != nil {
		t.Errorf("the controller: %v", err)
	}
	p.Inject(spdktest.Fault{Method: "bdev_get_bdevs", Times: 1, Instead: spdktest.Silence})
	for patience := 50 * time.Millisecond; patience < time.Minute; patience *= 2 { // until the request is sent
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err = c.Bdev(ctx, "nv0n1")
		if cancel(); errors.Is(err, spdk.Unanswered) {
			break
		}
	}
	is(t, "an answer that never comes", err, spdk.Unanswered, context.DeadlineExceeded)
	if _, err := c.Bdev(t.Context(), "nv0n1"); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestDoubleRestart(t *testing.T) {
	_, p, c := world(t, spdktest.Config{})
	ctx := t.Context()
	testkit.Value(c.AttachNVMe(ctx, attach("nv0")))(t)
	before, err := c.Process(ctx)
	is(t, "before", err)
	p.Kill() // the socket is left over
	is(t, "while it is away", c.Call(ctx, "spdk_get_version", nil, nil), errs.Unavailable)
	testkit.Must(t, p.Start())
	is(t, "ready again", c.WaitReady(ctx))
	_, err = c.Bdev(ctx, "nv0n1")
	is(t, "what it had", err, spdk.NotFound)
	after, err := c.Process(ctx)
	if err != nil || after.Generation != before.Generation+1 || after.Identity == before.Identity {
		t.Errorf("%+v after %+v, %v", after, before, err)
	}
}

func TestDoubleStartUp(t *testing.T) {
	_, _, c := world(t, spdktest.Config{WaitForRPC: true})
	ctx := t.Context()
	is(t, "too early", c.CreateAIO(ctx, spdk.AIO{Name: "a", Filename: "/dev/null", BlockSize: 512}), spdk.NotReady, spdk.WrongState, errs.Unavailable)
	ready := make(chan error, 1)
	go func() { ready <- c.WaitReady(ctx) }()
	is(t, "start", c.Do(ctx, "framework_start_init", nil))
	is(t, "ready", <-ready)
}
