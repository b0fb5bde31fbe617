package fence

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

const peerPort = 9070

// second is another storage server with its own fence service.
type second struct {
	machine *rig.Machine
	addr    netip.Addr
	cable   rig.Cable
	flags   []string
}

func (s *site) second(number int, tls mutualtls.Files) *second {
	s.t.Helper()
	o := &second{machine: rig.NewMachine(s.t), addr: netip.AddrFrom4([4]byte{10, 9, 0, byte(number)})}
	o.cable = s.network.Attach(s.t, o.machine.Namespace, netip.PrefixFrom(o.addr, 16))
	o.flags = append([]string{"--ports", "4420", "--listen", fmt.Sprintf(":%d", peerPort)}, tlsFlags(tls)...)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("log of %s:\n%s", o.addr, serve.Logs(o.machine))
		}
	})
	return o
}

func (s *site) serveSecond(o *second) *serve.Service {
	s.t.Helper()
	v := testkit.Value(serve.Launch(s.t.Context(), o.machine, cleat, nil, o.flags...))(s.t)
	s.t.Cleanup(func() { _ = v.Close() })
	return v
}

func tlsFlags(f mutualtls.Files) []string {
	return []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA}
}

// Two storage servers behind one controller: OK means that both have fenced.
func TestTwoServersBehindOneController(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	authority := testkit.NewAuthority(t, "cluster")
	a := s.second(11, authority.Files(t, nil, "10.9.0.11"))
	b := s.second(12, authority.Files(t, nil, "10.9.0.12"))
	var records []*storage.Records
	for _, o := range []*second{a, b} {
		r := testkit.Value(storage.StartRecords(o.machine, recordPort))(t)
		records = append(records, r)
	}
	serviceA, serviceB := s.serveSecond(a), s.serveSecond(b)
	front, err := serve.Launch(t.Context(), s.machine, cleat, nil, append(tlsFlags(authority.Files(t, nil, "10.9.0.2")), "--peers-only",
		"--peer", fmt.Sprintf("a=%s:%d", a.addr, peerPort), "--peer", fmt.Sprintf("b=%s:%d", b.addr, peerPort), "--check-interval", "200ms")...)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = front.Close() })
	victim := s.host(1, 7)
	write := func(o *second) *storage.Writer {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn := testkit.Value(victim.Dial(ctx, netip.AddrPortFrom(o.addr, recordPort), victim.v4))(t)
		id := s.serial.Add(1)
		w := storage.NewWriter(id, storage.RecordSession(id, conn), pace)
		t.Cleanup(w.Close)
		return w
	}
	shut := func(o *second) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		conn, err := victim.Dial(ctx, netip.AddrPortFrom(o.addr, recordPort), victim.v4)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}
	wa, wb := write(a), write(b)
	s.await(20, wa, wb)

	// One is dead: the other one fences, and the call fails.
	testkit.Must(t, serviceB.Kill())
	err = front.Fence(t.Context(), map[string]string{"clusterID": "rack-one"}, victimBlock)
	s.code(err, codes.Unavailable)
	if !strings.Contains(fmt.Sprint(err), "peer b") {
		t.Errorf("the message does not name the missing peer: %v", err)
	}
	if !shut(a) {
		t.Error("the running peer has not fenced")
	}
	if blocks, err := front.List(t.Context(), nil); err == nil && len(blocks) > 0 {
		t.Errorf("a fence on one of two peers is listed: %v", blocks)
	}
	serviceB = s.serveSecond(b)
	testkit.EventuallyNil(t, "the retry succeeds", func() error { return front.Fence(t.Context(), map[string]string{"clusterID": "rack-one"}, victimBlock) })
	when := takeBaseline(wa, wb)
	if !shut(a) || !shut(b) {
		t.Error("the call succeeded without a fence on both peers")
	}
	if err := s.listed(front, victimBlock); err != nil {
		t.Error(err)
	}
	for _, v := range []*serve.Service{serviceA, serviceB} {
		if err := s.listed(v, victimBlock); err != nil {
			t.Error(err)
		}
	}

	// A peer loses its fence and its records; the controller repeats the fence.
	_ = serviceB.Kill()
	_ = serve.KillHolder(t.Context(), b.machine)
	b.machine.MustRun(t, "nft", "flush", "ruleset")
	b.machine.MustRun(t, "rm", "-r", serve.State(b.machine))
	serviceB = s.serveSecond(b)
	testkit.EventuallyNil(t, "the controller repeats the fence", func() error { return s.listed(serviceB, victimBlock) })

	// The unfence goes to both as well.
	testkit.Must(t, serviceA.Kill())
	s.code(front.Unfence(t.Context(), map[string]string{"clusterID": "rack-one"}, victimBlock), codes.Unavailable)
	serviceA = s.serveSecond(a)
	testkit.EventuallyNil(t, "the retry lifts it", func() error {
		return front.Unfence(t.Context(), map[string]string{"clusterID": "rack-one"}, victimBlock)
	})
	s.await(20, write(a), write(b))
	for i, w := range []*storage.Writer{wa, wb} {
		one := baseline{at: when.at, sent: map[*storage.Writer]uint64{w: when.sent[w]}}
		s.nothingSince(one, records[i])
	}
	for _, o := range []*second{a, b} {
		if strings.Contains(serve.Logs(o.machine), "rack-one") {
			t.Error("a peer got the caller's parameters")
		}
	}
	for _, v := range []*serve.Service{serviceA, serviceB} {
		if err := s.listed(v); err != nil {
			t.Error(err)
		}
	}
}

// Calls between controller and peer require a certificate of the authority for
// the address that is called, on both sides.
func TestPeersRequireValidCertificates(t *testing.T) {
	t.Parallel()
	authority, foreign := testkit.NewAuthority(t, "cluster"), testkit.NewAuthority(t, "foreign")
	mixed := foreign.Files(t, nil, "10.9.0.2") // trusts the cluster, signed by a foreign authority
	mixed.CA = authority.Files(t, nil, "10.9.0.2").CA
	for _, c := range []struct {
		name        string
		front, back mutualtls.Files
		expired     bool // the caller's, at the time of the call
	}{
		{"the caller's authority is foreign", mixed, authority.Files(t, nil, "10.9.0.11"), false},
		{"the caller has expired", authority.Files(t, nil, "10.9.0.2"), authority.Files(t, nil, "10.9.0.11"), true},
		{"the peer has another name", authority.Files(t, nil, "10.9.0.2"), authority.Files(t, nil, "10.9.0.99"), false},
		{"each authority is foreign to the other", foreign.Files(t, nil, "10.9.0.2"), authority.Files(t, nil, "10.9.0.11"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			o := s.second(11, c.back)
			back := s.serveSecond(o)
			front, err := serve.Launch(t.Context(), s.machine, cleat, nil,
				append(tlsFlags(c.front), "--peers-only", "--peer", fmt.Sprintf("a=%s:%d", o.addr, peerPort))...)
			testkit.Must(t, err)
			defer front.Close()
			if c.expired { // it refuses to start with an expired certificate
				cert, key := authority.Issue(t, testkit.Expired, "10.9.0.2")
				testkit.ReplaceFile(t, c.front.Cert, cert, 0o644)
				testkit.ReplaceFile(t, c.front.Key, key, 0o600)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err = front.Fence(ctx, nil, victimBlock)
			s.code(err, codes.Unavailable)
			if !strings.Contains(fmt.Sprint(err), "peer a") || !strings.Contains(fmt.Sprint(err), "certificate") && !strings.Contains(fmt.Sprint(err), "tls") {
				t.Errorf("the message does not name the cause: %v", err)
			}
			if err := s.listed(back); err != nil {
				t.Error(err)
			}
		})
	}
}
