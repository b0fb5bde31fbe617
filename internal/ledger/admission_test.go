package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestQuietWaitsForCoveredClients(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	recordClients(t, l, client("former", "192.0.2.7"), client("former", "198.51.100.7"))
	block := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	ended := testkit.Canceled(t)
	for name, c := range map[string]struct {
		who     volume.Client
		covered bool
	}{
		"by address":          {client("a", "192.0.2.1"), true},
		"by the other family": {client("b", "198.51.100.1", "2001:db8::1"), true},
		"by a former address": {client("former"), true},
		"elsewhere":           {client("c", "198.51.100.2"), false},
		"without an address":  {client("d"), false},
	} {
		var leaves []func()
		for range 2 {
			leave := testkit.Value(l.Enter(t.Context(), c.who))(t)
			leaves = append(leaves, leave, leave) // idempotent
		}
		for i, leave := range leaves {
			err := l.Quiet(ended, block)
			if out := i >= 3; c.covered && !out {
				if !errors.Is(err, errs.Unavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "node "+c.who.Node+" (since 20") {
					t.Errorf("%s, after %d calls of leave: %v", name, i, err)
				}
			} else if err != nil {
				t.Errorf("%s, after %d calls of leave: %v", name, i, err)
			}
			leave()
		}
	}
}

// An address added after Enter counts as well.
func TestQuietSeesAddressesThatCameLater(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	leave := testkit.Value(l.Enter(t.Context(), client("n", "198.51.100.1")))(t)
	recordClients(t, l, client("n", "192.0.2.1"))
	quiet := make(chan error, 1)
	go func() { quiet <- l.Quiet(t.Context(), []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}) }()
	ended := testkit.Canceled(t)
	testkit.WantError(t, "Quiet", l.Quiet(ended, []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}), errs.Unavailable)
	leave()
	testkit.Must(t, <-quiet)
}

// TestNothingIsRecordedBehindAFence: after the transaction of a fence nothing
// is recorded for covered clients, with many concurrent ones.
func TestNothingIsRecordedBehindAFence(t *testing.T) {
	for round := range 30 {
		l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
		var crowd sync.WaitGroup
		for i := range 12 {
			c := client(fmt.Sprint("n", i), fmt.Sprintf("192.0.2.%d", i))
			crowd.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = l.Grant(t.Context(), volume.Grant{Volume: volume.ID(fmt.Sprint("v", i)), Client: c, Mode: "m"})
				} else {
					_, err = l.Enter(t.Context(), c)
				}
				if err != nil && !errors.Is(err, errs.Precondition) {
					t.Error(err)
				}
			})
		}
		var held []string
		err := s.Update(t.Context(), func(tx *store.Tx) error {
			held = recorded(tx)
			_, err := replaceFences(tx, nil, []volume.Fence{fenceOf("192.0.2.0/24", "a", volume.Fencing)})
			return err
		})
		crowd.Wait()
		testkit.Must(t, err)
		_ = s.View(t.Context(), func(tx *store.Tx) error {
			if now := recorded(tx); !slices.Equal(held, now) {
				t.Errorf("round %d: %q when the fence was recorded, %q now", round, held, now)
			}
			return nil
		})
		_ = s.Close()
	}
}

func recorded(tx *store.Tx) (keys []string) {
	for e := range grants().Range(tx, "") {
		keys = append(keys, e.Key)
	}
	for e := range clients().Range(tx, "") {
		keys = append(keys, e.Key)
	}
	return keys
}

// TestFenceAgainstTheCrowd: many clients come and go, by name or by address,
// while their blocks are fenced and unfenced. Between Quiet and the unfencing
// no covered client is admitted or gets a grant.
func TestFenceAgainstTheCrowd(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	const nodes, workers = 6, 4
	rounds := 3
	if soak.Enabled {
		rounds = 15
	}
	crowd := make([]member, nodes)
	for i := range crowd {
		crowd[i].client = client(fmt.Sprint("n", i), fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("2001:db8::%d", i))
		crowd[i].block = netip.PrefixFrom(crowd[i].client.Addrs[i%2], crowd[i].client.Addrs[i%2].BitLen())
		recordClients(t, l, crowd[i].client)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range crowd {
		for w := range workers {
			all.Go(func() { crowd[i].work(ctx, t, l, w) })
		}
	}
	var fencers sync.WaitGroup
	for i := range crowd {
		fencers.Go(func() {
			for range rounds {
				crowd[i].fence(t, l)
			}
		})
	}
	fencers.Wait()
	stop()
	all.Wait()
	for i := range crowd {
		if crowd[i].admitted.Load() == 0 || crowd[i].refused.Load() == 0 {
			t.Errorf("n%d: let in %d times, refused %d times: nothing was tried", i, crowd[i].admitted.Load(), crowd[i].refused.Load())
		}
	}
}

type member struct {
	client            volume.Client
	block             netip.Prefix
	inside            atomic.Int64
	fenced            atomic.Bool // from Quiet to the unfencing
	admitted, refused atomic.Int64
}

func (m *member) work(ctx context.Context, t *testing.T, l *Ledger, worker int) {
	who := m.client
	if worker%2 == 0 {
		who.Addrs = nil // known by name
	}
	grant := volume.Grant{Volume: volume.ID(fmt.Sprint(m.client.Node, "-", worker)), Client: who, Mode: "m"}
	for ctx.Err() == nil {
		leave, err := l.Enter(context.Background(), who)
		if err != nil {
			if !errors.Is(err, errs.Precondition) {
				t.Error(err)
			}
			m.refused.Add(1)
			runtime.Gosched()
			continue
		}
		m.inside.Add(1)
		m.admitted.Add(1)
		if _, err := l.Grant(context.Background(), grant); err != nil && !errors.Is(err, errs.Precondition) {
			t.Error(err)
		}
		if err := l.Revoke(context.Background(), grant.Volume, "", nil); err != nil {
			t.Error(err)
		}
		if m.fenced.Load() {
			t.Errorf("%s is inside behind its fence", m.client.Node)
		}
		m.inside.Add(-1)
		leave()
	}
}

// fence fences the member, checks that, and unfences it.
func (m *member) fence(t *testing.T, l *Ledger) {
	change := func(phase volume.FencePhase) {
		_, _, err := l.ChangeFences(t.Context(), func(now []volume.Fence) (next []volume.Fence, err error) {
			for _, f := range now {
				if f.Block != m.block {
					next = append(next, f)
				}
			}
			if phase != "" {
				next = append(next, fenceOf(m.block.String(), "a", phase))
			}
			return next, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	change(volume.Fencing)
	testkit.Must(t, l.Quiet(t.Context(), []netip.Prefix{m.block}))
	m.fenced.Store(true)
	refused := m.refused.Load()
	for bound := time.Now().Add(time.Minute); m.refused.Load() < refused+3 && time.Now().Before(bound); {
		if n := m.inside.Load(); n != 0 {
			t.Errorf("%d of %s are inside behind its fence", n, m.client.Node)
			break
		}
		if held, err := l.ByNode(t.Context(), m.client.Node); err != nil || len(held) != 0 {
			t.Errorf("behind its fence %s has %v, %v", m.client.Node, held, err)
			break
		}
	}
	m.fenced.Store(false)
	change("")
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
	// A grant without addresses has the recorded ones.
	got, err := l.Grant(t.Context(), volume.Grant{Volume: "v", Client: volume.Client{Node: "n1"}, Mode: "m"})
	if err != nil || !slices.Equal(got.Client.Addrs, n1.Addrs) || got.Client.HostNQN != "" {
		t.Errorf("granted to %+v, %v", got.Client, err)
	}
}

func TestBadClients(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	many := client("n")
	for i := range MaxAddrs + 1 {
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

// A known client causes no write.
func TestKnownClientIsNotWrittenAgain(t *testing.T) {
	l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	c := client("n1", "192.0.2.1")
	recordClients(t, l, c)
	err := s.Update(t.Context(), func(*store.Tx) error { // no other writer meanwhile
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

// A node with the maximum number of addresses gets as many others; it keeps the
// first as former ones.
func TestWholeGenerationOfAddressesStaysKnown(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	before, after := client("n"), client("n")
	for i := range MaxAddrs {
		before.Addrs = append(before.Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
		after.Addrs = append(after.Addrs, netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}))
	}
	recordClients(t, l, before, after)
	for _, a := range before.Addrs {
		wantIn(t, l, a.String()+"/32", "n")
	}
}

// An address belongs to its new node, unless an earlier fence can apply to the
// previous one.
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
		// A third node gets it, while the second has it on record.
		recordClients(t, l, client("third", "192.0.2.1"))
		wantIn(t, l, "192.0.2.1/32", append(want, "third")...)
	}
}
