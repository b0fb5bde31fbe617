package dpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// site is a DPU: a SNAP process on a network of targets, directories, and cleat
// dpu, which can be restarted.
type site struct {
	t       testing.TB
	ctx     context.Context
	dir     string
	network *spdktest.Network
	snap    *spdktest.Process
	rpc     *spdk.Client // for the test's own calls
	program string
	flags   []string
	*running
	patience  time.Duration // of eventually
	agreement time.Duration // of awaitAgreement; 0: patience
	atSocket  string        // "": in a directory of dir
}

// running is shared by the parts of a test.
type running struct{ plugin *process } // nil while stopped

// newSite creates a site with a double of SNAP; the plugin is not started. When
// the test ends, the plugin is stopped with SIGTERM.
func newSite(t testing.TB, c spdktest.Config, program string, flags ...string) *site {
	t.Helper()
	s := emptySite(t, program)
	s.network = spdktest.NewNetwork(nil)
	c.Socket = filepath.Join(s.dir, "snap.sock")
	s.snap = testkit.Value(s.network.Start(c))(t)
	s.join(c.Socket, flags...)
	t.Cleanup(func() {
		if err := errors.Join(s.rpc.Close(), s.snap.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.end)
	return s
}

// emptySite makes the directories.
func emptySite(t testing.TB, program string) *site {
	t.Helper()
	dir := testkit.Value(os.MkdirTemp("", "s"))(t)
	s := &site{t: t, ctx: context.WithoutCancel(t.Context()), dir: dir, program: program, running: &running{}, patience: patience}
	t.Cleanup(s.clear)
	testkit.Must(s.t, os.Chmod(dir, 0o755))
	for _, d := range []string{s.pool(), s.keys(), s.volumes()} {
		testkit.Must(s.t, os.Mkdir(d, 0o700))
	}
	return s
}

// join configures the site for a SNAP process.
func (s *site) join(snap string, flags ...string) {
	s.t.Helper()
	s.flags = append([]string{
		"--plugin-name", "test", "--provider-name", "snap", "--node", "dpu-1", "--snap-socket", snap,
		"--volume-dir", s.volumes(), "--state-dir", s.state(), "--key-dir", s.keys(), "--pool", poolID + "=" + s.pool(),
		"--metrics-address", s.telemetry(), "--log-format", "text",
	}, flags...)
	s.rpc = testkit.Value(spdk.Open(spdk.Config{Socket: snap, Timeout: patience}))(s.t)
}

func (s *site) pool() string      { return filepath.Join(s.dir, "pool") }
func (s *site) keys() string      { return filepath.Join(s.dir, "keys") }
func (s *site) volumes() string   { return filepath.Join(s.dir, "volumes") }
func (s *site) state() string     { return filepath.Join(s.dir, "state") }
func (s *site) telemetry() string { return filepath.Join(s.dir, "t.sock") }
func (s *site) socket() string {
	return cmp.Or(s.atSocket, filepath.Join(s.dir, "plugin", "dpu.sock"))
}

// of returns the same site for a subtest.
func (s *site) of(t testing.TB) *site {
	part := *s
	part.t = t
	return &part
}

// start starts the plugin and waits until it is ready.
func (s *site) start(env ...string) {
	s.t.Helper()
	s.begin(env...)
	testkit.Must(s.t, s.plugin.ready(s.ctx))
}

// begin starts the plugin and waits until it accepts calls.
func (s *site) begin(env ...string) {
	s.t.Helper()
	s.launch(env...)
	testkit.Must(s.t, s.plugin.serves(s.ctx))
}

// launch starts the plugin and does not wait.
func (s *site) launch(env ...string) {
	s.t.Helper()
	s.plugin = testkit.Value(launch(s.program, s.socket(), filepath.Join(s.dir, "log"), env, s.flags...))(s.t)
}

// stop stops the plugin as a pod is stopped.
func (s *site) stop() {
	s.t.Helper()
	if s.plugin == nil {
		return
	}
	if err := s.plugin.stop(); err != nil {
		s.t.Errorf("cleat dpu did not stop cleanly: %v\n%s", err, s.plugin.log())
	}
	s.plugin = nil
}

func (s *site) kill() {
	s.t.Helper()
	s.plugin.kill()
	s.plugin = nil
}

func (s *site) end() {
	p := s.plugin
	s.stop()
	if p == nil {
		return
	}
	if err := p.wrong(); err != nil {
		s.t.Error(err)
	}
	if s.t.Failed() {
		s.t.Logf("the end of the plugin's log: %s", last(p.log(), 6000))
	}
}

func last(text string, n int) string { return text[max(0, len(text)-n):] }

// clear unmounts everything and removes the directory.
func (s *site) clear() {
	table, err := mount.Table(s.ctx)
	for _, e := range slices.Backward(table) {
		if strings.HasPrefix(e.Target, s.dir+"/") {
			err = errors.Join(err, mount.Unmount(s.ctx, e.Target))
		}
	}
	if err := errors.Join(err, os.RemoveAll(s.dir)); err != nil {
		s.t.Error(err)
	}
}

// eventually polls until so returns nil.
func (s *site) eventually(what string, so func() error) {
	s.t.Helper()
	s.within(s.patience, what, so)
}

func (s *site) within(bound time.Duration, what string, so func() error) {
	s.t.Helper()
	if err := testkit.Poll(bound, nil, so); err != nil {
		s.t.Fatalf("%s: not within %s: %v", what, bound, err)
	}
}

// try calls CreateDevice once.
func (s *site) try(v volume) (string, error) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	return s.plugin.Create(ctx, client.Create{Volume: v.id, Mode: v.mode, Modes: v.modes(), Contexts: v.contexts})
}

// create repeats CreateDevice, as the node driver does.
func (s *site) create(v volume) (device string) {
	s.t.Helper()
	s.eventually("CreateDevice of "+v.id, func() (err error) {
		device, err = s.try(v)
		return s.refusal(err)
	})
	return device
}

// remove repeats DeleteDevice in the same way.
func (s *site) remove(v volume, device string) {
	s.t.Helper()
	s.eventually("DeleteDevice of "+v.id, func() error {
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		defer cancel()
		return s.refusal(s.plugin.Delete(ctx, v.id, device))
	})
}

// refusal ends the test unless the contract allows the error; then the call is
// to be repeated.
func (s *site) refusal(err error) error {
	s.t.Helper()
	if err != nil && status.Code(err) != codes.FailedPrecondition {
		s.t.Fatalf("%v\n%s", err, last(s.plugin.log(), 6000))
	}
	return err
}

// refused wants FAILED_PRECONDITION with words.
func (s *site) refused(err error, words ...string) {
	s.t.Helper()
	if status.Code(err) != codes.FailedPrecondition {
		s.t.Errorf("got %v, want FAILED_PRECONDITION", err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			s.t.Errorf("the answer %q does not hold %q", err, w)
		}
	}
}

// listed returns the devices of ListDevices, by volume.
func (s *site) listed() (map[string]string, error) {
	all, token := map[string]string{}, ""
	for {
		page, next, err := s.plugin.List(s.ctx, 7, token)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			if all[e.Volume] != "" {
				return nil, fmt.Errorf("ListDevices has volume %s twice", e.Volume)
			}
			all[e.Volume] = e.Device
		}
		if token = next; token == "" {
			return all, nil
		}
	}
}

// absent wants NOT_FOUND for a device, after any answers that the call is to be
// repeated.
func (s *site) absent(v volume, device string) {
	s.t.Helper()
	s.eventually("an answer of GetDevice for volume "+v.id, func() error {
		_, err := s.plugin.Get(s.ctx, v.id, device)
		if status.Code(err) == codes.FailedPrecondition {
			return err
		}
		if status.Code(err) != codes.NotFound {
			s.t.Errorf("GetDevice of volume %s, device %q: %v, want NOT_FOUND", v.id, device, err)
		}
		return nil
	})
	s.eventually("an answer of ListDevices", func() error {
		all, err := s.listed()
		if err != nil {
			return s.refusal(err)
		}
		if all[v.id] != "" {
			s.t.Errorf("ListDevices has volume %s: %q", v.id, all[v.id])
		}
		return nil
	})
}
