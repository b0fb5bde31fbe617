package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

func contextThatEnded(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx, cancel
}

func wantClients(t *testing.T, l *Ledger, want ...volume.Client) {
	t.Helper()
	got, err := l.Clients(t.Context())
	if diff := cmp.Diff(want, got, plainNetip); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func wantIn(t *testing.T, l *Ledger, block string, nodes ...string) {
	t.Helper()
	got, err := l.ClientsIn(t.Context(), []netip.Prefix{netip.MustParsePrefix(block), netip.MustParsePrefix("203.0.113.77/32")})
	names := []string{}
	for _, c := range got {
		names = append(names, c.Node)
	}
	if err != nil || !slices.Equal(names, nodes) {
		t.Errorf("clients in %s: %q, %v; want %q", block, names, err, nodes)
	}
}

func TestClientsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	l, s := openLedger(t, path)
	n1 := client("n1", "192.0.2.1", "2001:db8::1")
	n1.HostNQN = "nqn.n1"
	recordClients(t, l, client("n2"), n1, client("n1"), client("n1", "2001:db8::1%eth0", "::ffff:192.0.2.1", "192.0.2.1"))
	_ = s.Close()
	l, _ = openLedger(t, path)
	wantClients(t, l, n1, client("n2"))
	if c, ok, err := l.Client(t.Context(), "n1"); err != nil || !ok || !cmp.Equal(c, n1, plainNetip) {
		t.Errorf("n1: %v, %t, %v", c, ok, err)
	}
	for _, node := range []string{"", "n", "n3"} {
		if c, ok, err := l.Client(t.Context(), node); err != nil || ok {
			t.Errorf("%q: %v, %t, %v", node, c, ok, err)
		}
	}
	wantIn(t, l, "192.0.2.0/24", "n1")
	wantIn(t, l, "2001:db8::1/128", "n1")
	wantIn(t, l, "192.0.2.2/32")
	// A grant without addresses has those on record.
	got, err := l.Grant(t.Context(), Grant{Volume: "v", Client: volume.Client{Node: "n1"}, Mode: "m"})
	if err != nil || !slices.Equal(got.Client.Addrs, n1.Addrs) || got.Client.HostNQN != "" {
		t.Errorf("granted to %+v, %v", got.Client, err)
	}
}

func TestBadClients(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	many := client("n")
	for i := range maxAddrs + 1 {
		many.Addrs = append(many.Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	for name, c := range map[string]volume.Client{
		"no node": client(""), "a NUL": client("a\x00b"), "no address": {Node: "n", Addrs: []netip.Addr{{}}}, "any address": client("n", "::"), "too many": many,
	} {
		_, entered := l.Enter(t.Context(), c)
		for _, err := range []error{l.RecordClient(t.Context(), c), entered} {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	wantClients(t, l)
}

// What is known already costs no write.
func TestKnownClientIsNotWrittenAgain(t *testing.T) {
	l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	c := client("n1", "192.0.2.1")
	recordClients(t, l, c)
	err := s.Update(t.Context(), func(*store.Tx) error { // nobody can write meanwhile
		leave, err := l.Enter(t.Context(), c)
		if err != nil {
			return err
		}
		leave()
		return l.RecordClient(t.Context(), c)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestFormerAddresses(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	address := func(i int) string { return fmt.Sprintf("192.0.%d.%d", i/256, i%256) }
	recordClients(t, l, client("n", "198.51.100.1"))
	setFences(t, l, fenceOf("198.51.100.1/32", "a", volume.Fenced))
	for i := range maxFormer + 2 {
		recordClients(t, l, client("n", address(i)))
	}
	wantClients(t, l, client("n", address(maxFormer+1)))
	wantIn(t, l, "198.51.100.1/32", "n") // the fence keeps it
	wantIn(t, l, address(0)+"/32")       // the oldest is forgotten
	wantIn(t, l, address(1)+"/32", "n")
	wantIn(t, l, address(maxFormer)+"/32", "n")
	setFences(t, l)
	recordClients(t, l, client("n", address(500)), client("n", address(1)))
	wantIn(t, l, "198.51.100.1/32")
	wantClients(t, l, client("n", address(1)))
	recordClients(t, l, client("n", address(500)))
	wantIn(t, l, address(1)+"/32", "n")
}

// A node with as many addresses as it may have gets as many others; the first
// are still its own.
func TestWholeGenerationOfAddressesStaysKnown(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	before, after := client("n"), client("n")
	for i := range maxAddrs {
		before.Addrs = append(before.Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
		after.Addrs = append(after.Addrs, netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}))
	}
	recordClients(t, l, before, after)
	for _, a := range before.Addrs {
		wantIn(t, l, a.String()+"/32", "n")
	}
}

// An address that another node has now means that node: unless a fence was
// there before, which may mean the one that had it.
func TestAddressChangesHands(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
		recordClients(t, l, client("old", "192.0.2.1"), client("old", "192.0.2.2"))
		want := []string{"new"}
		if fenced {
			setFences(t, l, fenceOf("192.0.2.1/32", "a", volume.Fenced))
			want = []string{"new", "old"}
		}
		recordClients(t, l, client("new", "192.0.2.1"))
		wantIn(t, l, "192.0.2.1/32", want...)
		// It goes on to a third, while the second has it last on record.
		recordClients(t, l, client("third", "192.0.2.1"))
		wantIn(t, l, "192.0.2.1/32", append(want, "third")...)
	}
}
