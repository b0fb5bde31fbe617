package dpu

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/dputest"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

// Environment variables to run the suite against a real SPDK or SNAP process
// instead of the double. Its socket must be on this machine, and the process
// must see the machine's files at the same paths. With a target, as
// ADDRESS:PORT,NQN,NSID,NSID,..., namespaces are attached too, and never read
// or written; the suite needs sixteen.
const (
	socketEnvironment = "CLEAT_SNAP_SOCKET"
	targetEnvironment = "CLEAT_SNAP_TARGET"
)

// makes are the methods that create each kind of device; one is held to keep
// CreateDevice pending.
var makes = []string{"bdev_nvme_attach_controller", "bdev_aio_create", "bdev_rbd_create", "fsdev_aio_create"}

// supply assigns storage to volumes: always the same to one id, different ones
// to different ids. Released storage is reused.
type supply struct {
	mu    sync.Mutex
	taken map[string]int
	size  int
}

func (p *supply) take(t testing.TB, id string) int {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, has := p.taken[id]; has {
		return n
	}
	used := make([]bool, p.size)
	for _, n := range p.taken {
		used[n] = true
	}
	n := slices.Index(used, false)
	if n < 0 {
		t.Fatalf("%d namespaces are too few for the suite: give more", p.size)
	}
	p.taken[id] = n
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.taken, id)
	})
	return n
}

// TestContract runs the contract's suite on cleat dpu for each flavour of SNAP
// and each kind of device, or for one real process. In CI each flavour has one
// kind.
func TestContract(t *testing.T) {
	t.Parallel()
	if socket := os.Getenv(socketEnvironment); socket != "" {
		t.Logf("%s is set: the suite runs against the process behind %s", socketEnvironment, socket)
		realContract(t, socket)
		return
	}
	t.Logf("%s is not set: the suite runs against the double of SNAP, package spdk/spdktest", socketEnvironment)
	for _, c := range []struct {
		name   string
		config spdktest.Config
		kinds  []string
	}{
		{"SPDK", spdktest.Config{RBD: true}, []string{imageKind, ownKind, sharedKind, fileKind}},
		{"SNAP", spdktest.Config{Flavour: spdktest.Fork, SNAP: true}, []string{sharedKind, ownKind, fileKind}},
		{"SNAP 5", spdktest.Config{Flavour: spdktest.Fork, SNAP: true, Envelope: true}, []string{fileKind, ownKind, sharedKind}},
		{"SNAP on SPDK", spdktest.Config{SNAP: true, RBD: true}, []string{ownKind, sharedKind, fileKind, imageKind}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range soak.Pick(1, c.kinds) {
				t.Run(kind, func(t *testing.T) {
					t.Parallel()
					s := newSite(t, c.config, raced)
					contract(t, s, s.snap.Socket(), doubleBlock(s, kind), kind != sharedKind && kind != imageKind)
				})
			}
		})
	}
}

// Kinds of block devices of a double. Volumes of two of them wait for each
// other: they share a controller.
const (
	ownKind    = "subsystems"
	sharedKind = "namespaces of one subsystem"
	fileKind   = "files"
	imageKind  = "images"
)

// doubleBlock returns a constructor of block devices of a kind.
func doubleBlock(s *site, kind string) func(testing.TB, string) volume {
	switch kind {
	case ownKind:
		return func(t testing.TB, id string) volume {
			s.target(id, 1)
			t.Cleanup(func() { s.network.Remove(subnqn(id)) })
			return s.namespace(id, id, 1)
		}
	case sharedKind:
		const n = 40
		s.target("shared", n)
		p := &supply{taken: map[string]int{}, size: n}
		return func(t testing.TB, id string) volume {
			v := s.namespace(id, "shared", p.take(t, id)+1)
			delete(v.contexts.Volume, []string{"nsId", "uuid"}[p.take(t, id)%2]) // either suffices
			return v
		}
	case imageKind:
		return func(_ testing.TB, id string) volume { return s.rbd(id) }
	}
	return func(_ testing.TB, id string) volume { return s.file(id) }
}

// contract runs the suite on a plugin behind a gate. parallel: its volumes
// share nothing and do not wait for each other.
func contract(t *testing.T, s *site, snap string, block func(testing.TB, string) volume, parallel bool) {
	g := newGate(t, s.dir, snap)
	t.Cleanup(s.end) // before the gate
	s.flags[slices.Index(s.flags, "--snap-socket")+1] = g.socket
	s.start()
	contexts := func(v volume) dputest.Contexts {
		return dputest.Contexts{Volume: v.contexts.Volume, Publish: map[string]string{"nv-volumeName": v.id, "nv-volumeAttachmentName": "csi-" + v.id}}
	}
	dputest.Run(t, dputest.Options{
		Socket:     s.socket(),
		Block:      func(t testing.TB, id string) dputest.Contexts { return contexts(block(t, id)) },
		Filesystem: func(_ testing.TB, id string) dputest.Contexts { return contexts(s.directory(id)) },
		Unusable: func(_ testing.TB, id, mode string) dputest.Contexts {
			if mode == string(request.Filesystem) {
				return contexts(volume{id: id, contexts: located(access.File{Pool: poolID, Name: "absent"})})
			}
			// No process listens on this port of the machine either.
			return contexts(volume{id: id, contexts: request.Contexts{Volume: map[string]string{
				"targetType": "tcp", "targetAddr": "127.0.0.1", "targetPort": "9", "nqn": subnqn("absent"),
			}}})
		},
		Hold:     func(testing.TB, string) (<-chan struct{}, func()) { return g.hold(makes...) },
		Parallel: parallel,
		Announced: []dputest.Capability{
			storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_BLOCK_DEVICE, storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_FS_DEVICE,
			storagev1.StoragePluginServiceCapability_RPC_TYPE_GET_DEVICE_STATS, storagev1.StoragePluginServiceCapability_RPC_TYPE_LIST_DEVICES,
		},
	})
}

// realContract runs the suite on a real process: with files and directories,
// and with namespaces if there is a target.
func realContract(t *testing.T, socket string) {
	kinds := map[string]func(*site) func(testing.TB, string) volume{"files": func(s *site) func(testing.TB, string) volume {
		return func(_ testing.TB, id string) volume { return s.file(id) }
	}}
	if text := os.Getenv(targetEnvironment); text != "" {
		to, nqn, nsids, err := parseTarget(text)
		if err != nil {
			t.Fatalf("%s=%q: %v; want ADDRESS:PORT,NQN,NSID,NSID,...", targetEnvironment, text, err)
		}
		p := &supply{taken: map[string]int{}, size: len(nsids)}
		kinds[sharedKind] = func(*site) func(testing.TB, string) volume {
			return func(t testing.TB, id string) volume {
				return realNamespace(id, to, nqn, nsids[p.take(t, id)])
			}
		}
	} else {
		t.Logf("%s is not set: no namespaces", targetEnvironment)
	}
	for kind, block := range kinds { // sequential: there is one process
		t.Run(kind, func(t *testing.T) {
			s := emptySite(t, raced)
			s.join(socket)
			t.Cleanup(func() {
				if err := s.rpc.Close(); err != nil {
					t.Error(err)
				}
			})
			contract(t, s, socket, block(s), kind != sharedKind)
			s.end()
			bdevs := testkit.Value(s.rpc.Bdevs(s.ctx))(s.t)
			for _, b := range bdevs {
				if strings.HasPrefix(b.Name, "cleat_") {
					t.Errorf("left over in the process: bdev %s", b.Name)
				}
			}
		})
	}
}

// realNamespace is a namespace of the target of a real process.
func realNamespace(id string, to netip.AddrPort, nqn, nsid string) volume {
	return volume{id: id, mode: request.Block, contexts: request.Contexts{Volume: map[string]string{
		"targetType": "tcp", "targetAddr": to.Addr().String(), "targetPort": strconv.Itoa(int(to.Port())), "nqn": nqn, "nsId": nsid,
	}}}
}

func parseTarget(text string) (to netip.AddrPort, nqn string, nsids []string, err error) {
	words := strings.Split(text, ",")
	if len(words) < 3 {
		return to, "", nil, fmt.Errorf("there are %d of the at least three parts", len(words))
	}
	if to, err = netip.ParseAddrPort(words[0]); err != nil {
		return to, "", nil, err
	}
	for _, n := range words[2:] {
		if _, err := strconv.ParseUint(n, 10, 32); err != nil {
			return to, "", nil, err
		}
	}
	return to, words[1], words[2:], nil
}

// Targets are parsed as documented; malformed ones are refused.
func TestParseTarget(t *testing.T) {
	to, nqn, nsids, err := parseTarget("[2001:db8::1]:4420,nqn.2016-06.io.spdk:a,1,2")
	if err != nil || to.String() != "[2001:db8::1]:4420" || nqn != "nqn.2016-06.io.spdk:a" || !slices.Equal(nsids, []string{"1", "2"}) {
		t.Errorf("%s, %s, %q, %v", to, nqn, nsids, err)
	}
	for _, bad := range []string{"", "192.0.2.1:4420,nqn", "192.0.2.1,nqn,1", "192.0.2.1:4420,nqn,x"} {
		if _, _, _, err := parseTarget(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// The gate holds the requests it should; otherwise the suite proves less.
func TestGateHoldsRequests(t *testing.T) {
	s := newSite(t, spdktest.Config{}, plain)
	g := newGate(t, s.dir, filepath.Join(s.dir, "snap.sock"))
	testkit.Must(s.t, s.rpc.Close())
	s.join(g.socket)
	held, release := g.hold("bdev_get_bdevs")
	testkit.Must(s.t, onlyErr(s.rpc.Version(s.ctx)))
	answered := make(chan error, 1)
	go func() { answered <- onlyErr(s.rpc.Bdevs(s.ctx)) }()
	<-held
	testkit.Must(s.t, onlyErr(s.rpc.NVMeControllers(s.ctx))) // other requests pass
	select {
	case err := <-answered:
		t.Errorf("a held request was answered: %v", err)
	default:
	}
	for _, c := range s.snap.Calls() {
		if c.Method == "bdev_get_bdevs" {
			t.Error("SNAP got a held request")
		}
	}
	release()
	testkit.Must(s.t, <-answered)
}
