package expose

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
)

// silent stands before a double and takes out of its answers what the releases
// that the node driver knows do not tell of virtio-fs devices. A function keeps
// its address for some lists after it was unplugged, or for ever (-1).
type silent struct {
	target string
	lag    int

	mu       sync.Mutex
	address  map[string]string // by VUID, as last told
	lags     map[string]int
	sessions sync.WaitGroup
}

// before starts one and returns its socket.
func (s *silent) before(t *testing.T, target string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "silent")
	if err != nil {
		t.Fatal(err)
	}
	s.target, s.address, s.lags = target, map[string]string{}, map[string]int{}
	l, err := net.Listen("unix", filepath.Join(dir, "snap.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s.sessions.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.sessions.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.sessions.Wait()
		_ = os.RemoveAll(dir)
	})
	return l.Addr().String()
}

// serve passes one request after the other on, until either side is gone.
func (s *silent) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	snap, err := net.Dial("unix", s.target)
	if err != nil {
		return
	}
	defer func() { _ = snap.Close() }()
	requests, answers := json.NewDecoder(c), json.NewDecoder(snap)
	for {
		var request, answer map[string]any
		if requests.Decode(&request) != nil || json.NewEncoder(snap).Encode(request) != nil || answers.Decode(&answer) != nil {
			return
		}
		s.strip(request["method"], answer["result"])
		if json.NewEncoder(c).Encode(answer) != nil {
			return
		}
	}
}

func (s *silent) strip(method, result any) {
	list, _ := result.([]any)
	for _, e := range list {
		entry, _ := e.(map[string]any)
		switch method {
		case "virtio_fs_get_devices":
			delete(entry, "vuid")
			delete(entry, "manager")
			delete(entry, "hotplugged")
		case "virtio_fs_doca_get_functions":
			functions, _ := entry["Function List"].([]any)
			for _, f := range functions {
				s.linger(f.(map[string]any))
			}
		}
	}
}

func (s *silent) linger(f map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	vuid, _ := f["vuid"].(string)
	if address, _ := f["pci_address"].(string); address != "" {
		s.address[vuid] = address
	} else if was := s.address[vuid]; was != "" && s.lags[vuid] != s.lag {
		s.lags[vuid]++
		f["pci_address"] = was
	}
}

// settle is so long that a host that lets go does so within it on any machine.
func (s *silent) settle() time.Duration {
	if s.lag < 0 {
		return 300 * time.Millisecond
	}
	return time.Minute
}

// rig is a SNAP process that tells little.
func (s *silent) rig(t *testing.T) (r *rig, exposer func(notes string) *Exposer) {
	t.Helper()
	r = newRig(t, snapProcess())
	socket := s.before(t, r.Socket())
	return r, func(notes string) *Exposer {
		c, err := spdk.Open(spdk.Config{Socket: socket})
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		e, err := New(Config{RPC: c, Dir: notes, Settle: s.settle()})
		must(t, err)
		return e
	}
}

// Where SNAP does not tell on which function a device is, the note does, and the
// caller may. Nobody guesses.
func TestReleaseThatTellsLittle(t *testing.T) {
	for name, lag := range map[string]int{"at once": 0, "after a while": 5, "never": -1} {
		t.Run(name, func(t *testing.T) {
			s := &silent{lag: lag}
			r, exposer := s.rig(t)
			q := fsOf("f0")
			r.put(t, q)
			shown, err := exposer(r.dir).Expose(t.Context(), q)
			must(t, err)
			again, err := exposer(r.dir).Expose(t.Context(), q)
			if err != nil || again != shown || shown.PCI == "" {
				t.Errorf("%+v, %+v, %v", shown, again, err)
			}
			bare := t.TempDir()
			for what, err := range map[string]error{
				"expose": func() error { _, err := exposer(bare).Expose(t.Context(), q); return err }(),
				"hide":   exposer(bare).Hide(t.Context(), q),
			} {
				if errs.KindOf(err) != errs.Precondition || !strings.Contains(err.Error(), shown.VUID+" "+shown.PCI) {
					t.Errorf("%s without a note: %v", what, err)
				}
			}
			given := q
			given.VUID = shown.VUID
			if again, err := exposer(bare).Expose(t.Context(), given); err != nil || again != shown {
				t.Errorf("with the VUID: %+v, %v", again, err)
			}
			if lag == 0 {
				given.VUID, given.PCI = "", shown.PCI
				must(t, exposer(bare).Hide(t.Context(), given))
			}
			r.Forget()
			begun := time.Now()
			must(t, exposer(r.dir).Hide(t.Context(), q))
			took := time.Since(begun)
			// It is stopped when the host has let go, or after Settle.
			before, _, _ := strings.Cut(strings.Join(methods(r), " "), "virtio_fs_device_stop")
			if lists := strings.Count(before, "virtio_fs_doca_get_functions"); lag > 0 && (lists <= 5 || took >= s.settle()) || lag < 0 && took < s.settle() {
				t.Errorf("stopped after %d lists, %v", lists, took)
			}
			if left := r.left(t); len(left) > 0 {
				t.Errorf("left are %v", left)
			}
		})
	}
}

func methods(r *rig) (all []string) {
	for _, c := range r.Calls() {
		all = append(all, c.Method)
	}
	return all
}
