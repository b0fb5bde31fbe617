// Package fence tests cleat fence serve as a process beside real storage
// servers, with real clients on other hosts: the guarantees of a fence, also
// when processes are killed, when other programs change the packet filter, and
// after a reboot.
package fence

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// cleat is the program with crash points, which are inert unless the
// environment arms them.
var cleat string

func TestMain(m *testing.M) {
	kernelcall.Main()
	rig.Main(m, map[string]func() int{storage.RecordRole: storage.ServeRecords}, func() error {
		cleat = filepath.Join(os.TempDir(), "cleat")
		return testkit.BuildTo(context.Background(), cleat, testkit.Cleat, "-tags", "crashpoints")
	})
}

const (
	recordPort = 4420 // fenced
	otherPort  = 5000 // not fenced
	pace       = 2 * time.Millisecond
	patience   = time.Minute
)

var (
	server4 = netip.MustParsePrefix("10.9.0.2/16")
	server6 = netip.MustParsePrefix("fd09::2/48")
)

// host is a client, with an address of each family.
type host struct {
	*rig.Namespace
	cable rig.Cable
	v4    netip.Addr
	v6    netip.Addr
}

// site is a storage server with a fence service, and clients.
type site struct {
	t       testing.TB
	network *rig.Network
	machine *rig.Machine
	serial  *atomic.Uint64 // of writers
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{t: t, network: rig.NewNetwork(t), machine: rig.NewMachine(t), serial: &atomic.Uint64{}}
	s.network.Attach(t, s.machine.Namespace, server4, server6)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the services:\n%s", serve.Logs(s.machine))
		}
	})
	return s
}

// host adds a client 10.9.<net>.<number> and fd09:0:0:<net>::<number>.
func (s *site) host(net, number int) *host {
	s.t.Helper()
	h := &host{
		Namespace: rig.NewNamespace(s.t),
		v4:        netip.MustParseAddr(fmt.Sprintf("10.9.%d.%d", net, number)),
		v6:        netip.MustParseAddr(fmt.Sprintf("fd09:0:0:%x::%x", net, number)),
	}
	h.cable = s.network.Attach(s.t, h.Namespace, netip.PrefixFrom(h.v4, 16), netip.PrefixFrom(h.v6, 48))
	return h
}

func (s *site) records() *storage.Records {
	s.t.Helper()
	r := testkit.Value(storage.StartRecords(s.machine, recordPort))(s.t)
	return r
}

// serve starts the service with further flags. It ends with the machine.
func (s *site) serve(flags ...string) *serve.Service {
	s.t.Helper()
	return s.serveArmed(cleat, nil, flags...)
}

func (s *site) serveArmed(program string, env []string, flags ...string) *serve.Service {
	s.t.Helper()
	if !slices.Contains(flags, "--all-ports") && !slices.Contains(flags, "--ports") {
		flags = append([]string{"--ports", "4420,3260,10809"}, flags...)
	}
	v := testkit.Value(serve.Launch(s.t.Context(), s.machine, program, env, flags...))(s.t)
	s.t.Cleanup(func() { _ = v.Close() })
	return v
}

// serverOf is the server's address as seen by a client address.
func serverOf(from netip.Addr, port uint16) netip.AddrPort {
	if from.Is6() {
		return netip.AddrPortFrom(server6.Addr(), port)
	}
	return netip.AddrPortFrom(server4.Addr(), port)
}

// writer starts to write records from an address of a host.
func (s *site) writer(h *host, from netip.Addr) *storage.Writer {
	s.t.Helper()
	conn := s.dial(h, from, recordPort)
	id := s.serial.Add(1)
	w := storage.NewWriter(id, storage.RecordSession(id, conn), pace)
	s.t.Cleanup(w.Close)
	return w
}

func (s *site) dial(h *host, from netip.Addr, port uint16) net.Conn {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	conn := testkit.Value(h.Dial(ctx, serverOf(from, port), from))(s.t)
	return conn
}

// refused fails unless new sessions from an address are refused.
func (s *site) refused(h *host, from netip.Addr, port uint16) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 300*time.Millisecond)
	defer cancel()
	conn, err := h.Dial(ctx, serverOf(from, port), from)
	if err == nil {
		_ = conn.Close()
		s.t.Errorf("a new session from %s is accepted", from)
	} else if !rig.IsTimeout(err) {
		s.t.Errorf("a new session from %s is refused, but not by a fence: %v", from, err)
	}
}

// await waits until that many more writes are acknowledged.
func (s *site) await(more uint64, writers ...*storage.Writer) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for _, w := range writers {
		if err := w.Await(ctx, more); err != nil {
			s.t.Fatalf("writer %d after %d acknowledgements: %v", w.ID, w.Acked(), err)
		}
	}
}

// baseline is the state of writers when a fence was answered.
type baseline struct {
	at   time.Time
	sent map[*storage.Writer]uint64
}

// fence fences blocks and returns the state of these writers at the answer.
func (s *site) fence(v *serve.Service, blocks []string, writers ...*storage.Writer) baseline {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*patience)
	defer cancel()
	testkit.Must(s.t, v.Fence(ctx, nil, blocks...))
	return takeBaseline(writers...)
}

func takeBaseline(writers ...*storage.Writer) baseline {
	now := baseline{at: time.Now(), sent: map[*storage.Writer]uint64{}}
	for _, w := range writers {
		now.sent[w] = w.Sent()
	}
	return now
}

func (s *site) unfence(v *serve.Service, blocks ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*patience)
	defer cancel()
	testkit.Must(s.t, v.Unfence(ctx, nil, blocks...))
}

// nothingSince fails when the server accepted a write after the fence was
// answered, or lacks an acknowledged one.
func (s *site) nothingSince(when baseline, r *storage.Records) {
	s.t.Helper()
	all := s.whole(r)
	for w, sent := range when.sent {
		got := all[w.ID]
		if len(got) == 0 {
			s.t.Errorf("writer %d: no record", w.ID)
			continue
		}
		last := got[len(got)-1]
		if last.Number > sent || last.At.After(when.at) {
			s.t.Errorf("writer %d: record %d was accepted %s after the answer, when %d was the last one sent", w.ID, last.Number, last.At.Sub(when.at), sent)
		}
		if w.Acked() > last.Number {
			s.t.Errorf("writer %d: %d was acknowledged, the last record is %d", w.ID, w.Acked(), last.Number)
		}
	}
}

// whole returns the records; those of each writer must be numbered from 1
// without gaps.
func (s *site) whole(r *storage.Records) map[uint64][]storage.Record {
	s.t.Helper()
	all := testkit.Value(r.Read())(s.t)
	for id, records := range all {
		for i, one := range records {
			if one.Number != uint64(i)+1 {
				s.t.Fatalf("writer %d: record %d has number %d", id, one.Number, i+1)
			}
		}
	}
	return all
}

// unharmed fails unless writers continue, and all their records are there.
func (s *site) unharmed(r *storage.Records, writers ...*storage.Writer) {
	s.t.Helper()
	s.await(50, writers...)
	acked := map[uint64]uint64{}
	for _, w := range writers {
		acked[w.ID] = w.Acked()
	}
	all := s.whole(r)
	for id, n := range acked {
		if uint64(len(all[id])) < n { // a record is in the file before it is acknowledged
			s.t.Errorf("neighbour %d: %d of %d acknowledged writes are there", id, len(all[id]), n)
		}
	}
}

// code fails unless an error has one of the codes.
func (s *site) code(err error, want ...codes.Code) {
	s.t.Helper()
	if !slices.Contains(want, status.Code(err)) {
		s.t.Errorf("got %v, want a code of %v", err, want)
	}
}
