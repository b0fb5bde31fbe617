// Package dpubench measures cleat dpu as a process over its socket, with the
// double of SNAP as another process: the cost of calls with few and with many
// devices, the plugin's own share, the duration of a start and of the recovery
// from a SNAP restart, and memory. Run it with BENCH=dpu make bench.
package dpubench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	address = "192.0.2.10"
	port    = 4420
	pool    = "0b6f6c0e-8a55-4a3c-8f5e-2d1c9f0a7b11"
	bound   = time.Minute // far longer than anything here takes
)

func nqn(n int) string      { return fmt.Sprintf("nqn.2026-01.example:bench-%04d", n) }
func volumeID(n int) string { return fmt.Sprintf("pvc-%04d", n) }
func uuid(n int) string     { return fmt.Sprintf("e33a8f79-5f83-40cc-b7d5-%012d", n) }

// namespace requests the device of volume n: the only namespace of subsystem n.
// named includes the namespace id, which DPF's users seldom do.
func namespace(n int, named bool) client.Create {
	a := access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(address), port)}, NQN: nqn(n)}
	if named {
		a.NSID = 1
	}
	return create(n, a)
}

// file requests a device of volume n on a file of the pool.
func file(n int) client.Create { return create(n, access.File{Pool: pool, Name: volumeID(n)}) }

func create(n int, a access.Access) client.Create {
	return client.Create{
		Volume: volumeID(n), Mode: request.Block, Modes: []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_RWO},
		Contexts: request.Contexts{Volume: access.Encode(a)},
	}
}

// site is a plugin and a SNAP process.
type site struct {
	testing.TB
	dir    string
	snap   string // its socket
	cleat  string
	plugin *exec.Cmd
	log    *os.File
	client *client.Client
	orders io.Writer // stdin of the double's process
}

// newSite creates a site without starting the plugin. The double can listen on
// snap.
func newSite(t testing.TB) *site {
	t.Helper()
	dir := testkit.Value(os.MkdirTemp("", "dpu"))(t) // short enough for sockets
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &site{TB: t, dir: dir, snap: filepath.Join(dir, "snap.sock"), cleat: testkit.Build(t, testkit.Cleat, "-trimpath", "-ldflags=-s -w")}
	testkit.Must(s, os.Mkdir(filepath.Join(dir, "pool"), 0o700))
	s.log = testkit.Value(os.Create(filepath.Join(dir, "log")))(s)
	t.Cleanup(func() { testkit.Must(s, s.log.Close()) })
	return s
}

// double starts the double as a process without delays, with n subsystems of
// one namespace each.
func (s *site) double(n int) {
	s.Helper()
	program := filepath.Join(s.dir, "double")
	build := exec.CommandContext(s.Context(), "go", "build", "-o", program, "./spdk/spdktest/double")
	build.Dir = testkit.Root(s)
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	type object map[string]any
	var subsystems []object
	for i := range n {
		subsystems = append(subsystems, object{"nqn": nqn(i), "addresses": []string{fmt.Sprintf("TCP,%s,%d", address, port)},
			"namespaces": []object{{"nsid": 1, "uuid": uuid(i), "bytes": 1 << 30}}})
	}
	text := testkit.Value(json.Marshal(object{"subsystems": subsystems}))(s)
	scene := filepath.Join(s.dir, "scene.json")
	testkit.Must(s, os.WriteFile(scene, text, 0o600))
	cmd := exec.Command(program, "-socket", s.snap, "-snap", "-quick", "-scene", scene)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	said := testkit.Value(cmd.StdoutPipe())(s)
	s.orders = testkit.Value(cmd.StdinPipe())(s)
	cmd.Stderr = s.log
	testkit.Must(s, cmd.Start())
	lines := bufio.NewReader(said)
	testkit.Value(lines.ReadString('\n'))(s)
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(io.Discard, lines) }) // responses to commands, until it ends
	s.Cleanup(func() {
		err := cmd.Process.Signal(unix.SIGTERM)
		reading.Wait()
		if err := errors.Join(err, cmd.Wait()); err != nil {
			s.Errorf("the double: %v", err)
		}
	})
}

// start starts the plugin and returns the time until it was ready.
func (s *site) start() time.Duration {
	s.Helper()
	socket := filepath.Join(s.dir, "plugin", "dpu.sock")
	s.plugin = exec.Command(s.cleat, "dpu", "--plugin-name", "bench", "--provider-name", "bench", "--plugin-socket", socket, "--snap-socket", s.snap,
		"--volume-dir", filepath.Join(s.dir, "volumes"), "--state-dir", filepath.Join(s.dir, "state"), "--node", "bench",
		"--pool", pool+"="+filepath.Join(s.dir, "pool"), "--log-level", "error")
	s.plugin.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	s.plugin.Stdout, s.plugin.Stderr = s.log, s.log
	began := time.Now()
	testkit.Must(s, s.plugin.Start())
	s.Cleanup(s.stop)
	for {
		c, err := client.Dial(s.Context(), socket)
		if err == nil {
			ready, _, probeErr := c.Probe(s.Context())
			if probeErr == nil && ready {
				s.client = c
				return time.Since(began)
			}
			testkit.Must(s, c.Close())
		}
		if time.Since(began) > bound {
			text, _ := os.ReadFile(s.log.Name())
			s.Fatalf("the plugin is not ready: %v\n%s", err, text)
		}
		time.Sleep(time.Millisecond)
	}
}

// stop stops the plugin with SIGTERM.
func (s *site) stop() {
	s.Helper()
	if s.plugin == nil {
		return
	}
	p := s.plugin
	s.plugin = nil
	if s.client != nil {
		testkit.Must(s, s.client.Close())
		s.client = nil
	}
	if err := errors.Join(p.Process.Signal(unix.SIGTERM), p.Wait()); err != nil {
		s.Errorf("the plugin: %v", err)
	}
}

// clients returns n separate connections.
func (s *site) clients(n int) []*client.Client {
	s.Helper()
	var all []*client.Client
	for range n {
		c, err := client.Dial(s.Context(), s.client.Socket())
		testkit.Must(s, err)
		s.Cleanup(func() { _ = c.Close() })
		_, _, err = c.Probe(s.Context()) // connects
		testkit.Must(s, err)
		all = append(all, c)
	}
	return all
}

// present creates devices from to to, with 32 clients, and returns the
// duration.
func (s *site) present(ctx context.Context, from, to int) time.Duration {
	s.Helper()
	began := time.Now()
	each(s, s.clients(32), to-from, func(c *client.Client, i int) error {
		_, err := c.Create(ctx, namespace(from+i, true))
		return err
	})
	return time.Since(began)
}

// each makes n calls, spread over callers, and returns their durations.
func each[C any](t testing.TB, callers []C, n int, call func(c C, i int) error) []time.Duration {
	t.Helper()
	took := make([]time.Duration, n)
	errs := make([]error, len(callers))
	var next atomic.Int64
	var running sync.WaitGroup
	for at, c := range callers {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				began := time.Now()
				if errs[at] = call(c, i); errs[at] != nil {
					return
				}
				took[i] = time.Since(began)
			}
		})
	}
	running.Wait()
	testkit.Must(t, errors.Join(errs...))
	return took
}

// processor returns the processor time that the plugin has used so far.
func (s *site) processor() time.Duration {
	s.Helper()
	text := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.plugin.Process.Pid)))(s)
	_, behind, _ := strings.Cut(string(text), ") ") // the name can contain blanks
	fields := strings.Fields(behind)
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime
		n := testkit.Value(strconv.ParseInt(f, 10, 64))(s)
		ticks += n
	}
	const perSecond = 100 // USER_HZ, the same on all of Go's architectures
	return time.Duration(ticks) * time.Second / perSecond
}
