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

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/volume"
)

func TestQuietWaitsForWhoIsCovered(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	recordClients(t, l, client("former", "192.0.2.7"), client("former", "198.51.100.7"))
	block := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	ended, cancel := contextThatEnded(t)
	defer cancel()
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
			leave, err := l.Enter(t.Context(), c.who)
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave, leave) // twice is harmless
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

// An address that a node gets while it is inside counts as well.
func TestQuietSeesAddressesThatCameLater(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	leave, err := l.Enter(t.Context(), client("n", "198.51.100.1"))
	if err != nil {
		t.Fatal(err)
	}
	recordClients(t, l, client("n", "192.0.2.1"))
	quiet := make(chan error, 1)
	go func() { quiet <- l.Quiet(t.Context(), []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}) }()
	ended, cancel := contextThatEnded(t)
	defer cancel()
	if err := l.Quiet(ended, []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}); !errors.Is(err, errs.Unavailable) {
		t.Errorf("got %v", err)
	}
	leave()
	if err := <-quiet; err != nil {
		t.Error(err)
	}
}

// TestNothingIsRecordedBehindAFence: what the ledger holds of covered clients in
// the transaction of the fence is what it holds in the end, though many others
// were on their way.
func TestNothingIsRecordedBehindAFence(t *testing.T) {
	for round := range 30 {
		l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
		var crowd sync.WaitGroup
		for i := range 12 {
			c := client(fmt.Sprint("n", i), fmt.Sprintf("192.0.2.%d", i))
			crowd.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = l.Grant(t.Context(), Grant{Volume: volume.ID(fmt.Sprint("v", i)), Client: c, Mode: "m"})
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
		if err != nil {
			t.Fatal(err)
		}
		_ = s.View(t.Context(), func(tx *store.Tx) error {
			if now := recorded(tx); !slices.Equal(held, now) {
				t.Errorf("round %d: %q when the fence was recorded, %q now", round, held, now)
			}
			return nil
		})
		_ = s.Close()
	}
}

// recorded lists the keys of all grants and clients.
func recorded(tx *store.Tx) (keys []string) {
	for e := range grants().Range(tx, "") {
		keys = append(keys, e.Key)
	}
	for e := range clients().Range(tx, "") {
		keys = append(keys, e.Key)
	}
	return keys
}

// TestFenceAgainstTheCrowd: many clients come and go, some by name, some by
// address, while their blocks are fenced and unfenced. Between Quiet and the
// unfencing nobody covered is inside, and no grant is made.
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

// member is one node of the crowd.
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
	grant := Grant{Volume: volume.ID(fmt.Sprint(m.client.Node, "-", worker)), Client: who, Mode: "m"}
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
		if err := l.Revoke(context.Background(), grant.Volume, ""); err != nil {
			t.Error(err)
		}
		if m.fenced.Load() {
			t.Errorf("%s is inside behind its fence", m.client.Node)
		}
		m.inside.Add(-1)
		leave()
	}
}

// fence fences the member, looks whether that holds, and unfences it.
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
	if err := l.Quiet(t.Context(), []netip.Prefix{m.block}); err != nil {
		t.Error(err)
	}
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
