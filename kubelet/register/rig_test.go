package register

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// victimDir makes the test binary register in a directory until it is killed.
const victimDir = "CLEAT_TEST_REGISTRY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		r, err := New(config(dir))
		if err != nil {
			panic(err)
		}
		go func() {
			for range time.Tick(time.Millisecond) {
				if r.Status().State == Waiting {
					_, _ = os.Stdout.WriteString("registering\n")
					return
				}
			}
		}()
		panic(r.Serve(context.Background()))
	}
	goleak.VerifyTestMain(m)
}

// config returns settings with frequent checks and a long Silence, so that
// tests are fast and see no unexpected states.
func config(dir string) Config {
	return Config{Dir: dir, Plugin: driver("csi.cleat.dev"), Every: 5 * time.Millisecond, Silence: time.Hour}
}

// rig is a running registrar.
type rig struct {
	testing.TB
	*Registrar
	logs  *testkit.Log
	ended chan error
}

func serve(t testing.TB, c Config) *rig {
	t.Helper()
	return serveUntil(context.WithoutCancel(t.Context()), t, c)
}

func serveUntil(ctx context.Context, t testing.TB, c Config) *rig {
	t.Helper()
	r := &rig{TB: t, logs: testkit.NewLog(t), ended: make(chan error, 1)}
	c.Logger = r.logs.Logger()
	r.Registrar = testkit.Value(New(c))(t)
	go func() { r.ended <- r.Serve(ctx) }()
	t.Cleanup(r.end)
	return r
}

func (r *rig) end() {
	r.Helper()
	if err := r.Stop(testkit.Context(r)); err != nil {
		r.Errorf("stop: %v", err)
	}
	if err := testkit.Receive(r, "the end of Serve", r.ended); err != nil {
		r.Errorf("serve: %v", err)
	}
	r.ended <- nil
}

// reaches waits until the registration has a state.
func (r *rig) reaches(want State) Status {
	r.Helper()
	r.until("state "+string(want), func() bool { return r.Status().State == want })
	return r.Status()
}

func (r *rig) until(what string, so func() bool) {
	r.Helper()
	testkit.EventuallyNil(r, what, func() error {
		if !so() {
			return fmt.Errorf("status %+v", r.Status())
		}
		return nil
	})
}

// host calls the registration API like a kubelet: one connection for each
// attempt.
type host struct {
	registration.RegistrationClient
}

func dial(t testing.TB, socket string) host {
	t.Helper()
	return host{registration.NewRegistrationClient(testkit.Dial(t, socket))}
}

func (h host) getInfo(ctx context.Context) (*registration.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // longer than the kubelet's 1 s, to be independent of the load
	defer cancel()
	return h.GetInfo(ctx, &registration.InfoRequest{})
}

func (h host) notify(ctx context.Context, accepted bool, text string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // longer than the kubelet's 5 s
	defer cancel()
	_, err := h.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: accepted, Error: text})
	return err
}

// register calls GetInfo and reports success.
func (r *rig) register() {
	r.Helper()
	r.until("a socket", func() bool { _, err := os.Lstat(r.socket); return err == nil })
	h := dial(r, r.socket)
	_, err := h.getInfo(r.Context())
	testkit.Must(r, errors.Join(err, h.notify(r.Context(), true, "")))
	if s := r.Status(); s.State != Registered {
		r.Fatalf("after a yes: %+v", s)
	}
}

// alone checks that the directory contains only the socket, with mode 0600.
func alone(t testing.TB, socket string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(socket))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(socket) {
		t.Errorf("in the directory: %v, %v", entries, err)
		return
	}
	if info, err := entries[0].Info(); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
}
