package ledger

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// TestBoots: which events end a use that was not seen, by reports of its node. A
// report is BOOT@MACHINE, with ! a late one, with - none. "ends" reads the report
// as an unfence does.
func TestBoots(t *testing.T) {
	for name, c := range map[string]struct {
		events string
		ends   bool
	}{
		"another boot":                        {"look 1@m, gap, fence, record 1@m, ends 2@m", true},
		"the same boot":                       {"look 1@m, gap, fence, record 1@m, ends 1@m", false},
		"no report at the unfence":            {"look 1@m, gap, fence, record 1@m, ends -", false},
		"no report before the use":            {"look -, gap, fence, record 1@m, ends 2@m", false},
		"no look before the use":              {"gap, fence, record 1@m, ends 2@m", false},
		"no report at the fence":              {"look 1@m, gap, fence, record -, ends 2@m", false},
		"no record at the fence":              {"look 1@m, gap, fence, ends 2@m", false},
		"recorded by a later check":           {"look 1@m, gap, fence, record -, record 1@m, ends 2@m", true},
		"restarted before the record":         {"look 1@m, gap, fence, record 2@m, ends 2@m", false},
		"restarted before and after":          {"look 1@m, gap, fence, record 2@m, ends 3@m", true},
		"the first record stays":              {"look 1@m, gap, fence, record 1@m, record 2@m, ends 2@m", true},
		"a late report":                       {"look 1@m, gap, fence, record 1@m, ends 2@m!", false},
		"after a late report":                 {"look 1@m!, gap, fence, record 1@m!, ends 2@m", true},
		"another machine at the unfence":      {"look 1@m, gap, fence, record 1@m, ends 2@n", false},
		"another machine at the fence":        {"look 1@m, gap, fence, record 1@n, ends 2@n", false},
		"another machine since the use":       {"look 1@m, gap, look 1@n, fence, record 1@n, ends 2@n", false},
		"another machine before the use":      {"look 1@m, look 1@n, gap, fence, record 1@n, ends 2@n", true},
		"a machine that is not known":         {"look 1@, gap, fence, record 1@, ends 2@", false},
		"reports that could not be read":      {"look 1@m, unread, gap, fence, record 1@m, ends 2@m", true},
		"recorded before the fence":           {"look 1@m, gap, record 1@m, fence, ends 2@m", false},
		"recorded while the fence begins":     {"look 1@m, gap, fencing, record 1@m, fence, ends 2@m", false},
		"fenced again":                        {"look 1@m, gap, fence, record 1@m, lift, ends 2@m", false},
		"fenced again, the record is old":     {"look 1@m, gap, fence, record 1@m, lift, fence, ends 2@m", false},
		"fenced again and recorded":           {"look 1@m, gap, fence, record 1@m, lift, fence, record 2@m, ends 3@m", true},
		"revoked":                             {"look 1@m, gap, fence, record 1@m, revoke, ends 2@m", true},
		"read before the fence was confirmed": {"look 1@m, gap, fence, await, lift, fence, recorded 1@m, ends 2@m", false},
	} {
		t.Run(name, func(t *testing.T) {
			db := testkit.Value(store.Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), store.Options{Role: "fences", Version: 1}))(t)
			defer func() { testkit.Must(t, db.Close()) }()
			l := New(db)
			b := &bootRig{t: t, l: l, now: time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)}
			client := volume.Client{Node: "a", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
			b.look(nil, 0)
			testkit.Value(l.Grant(t.Context(), volume.Grant{Volume: "v", Client: client, Mode: "SINGLE_NODE_WRITER/block", Granted: b.now}))(t)
			for _, event := range strings.Split(c.events, ", ") {
				what, text, _ := strings.Cut(event, " ")
				b.happens(what, text)
			}
			if left := len(b.uses()); (left == 0) != c.ends {
				t.Errorf("%d uses are left", left)
			}
		})
	}
}

type bootRig struct {
	t        *testing.T
	l        *Ledger
	now      time.Time
	awaiting []Unseen
}

func (b *bootRig) look(boots map[string]volume.Boot, pause time.Duration) {
	b.t.Helper()
	begun := b.now.Add(pause)
	b.now = begun
	look := look{volume.Look{Begun: begun, All: true, Volumes: map[volume.ID]bool{"v": true}, Expiry: 30 * time.Second, Boots: boots}}
	testkit.Must(b.t, b.l.store.Update(b.t.Context(), func(tx *store.Tx) error {
		_, err := look.record(tx, begun)
		return err
	}))
}

func (b *bootRig) uses() []Unseen {
	b.t.Helper()
	return testkit.Value(b.l.Unseen(b.t.Context(), []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}))(b.t)
}

func (b *bootRig) phase(p volume.FencePhase) {
	b.t.Helper()
	b.now = b.now.Add(time.Second)
	_, _, err := b.l.ChangeFences(b.t.Context(), func([]volume.Fence) ([]volume.Fence, error) {
		if p == "" {
			return nil, nil
		}
		return []volume.Fence{{Block: netip.MustParsePrefix("192.0.2.1/32"), Owner: volume.FenceOwner{Digest: "o"}, Phase: p, Since: b.now}}, nil
	})
	testkit.Must(b.t, err)
}

func (b *bootRig) happens(what, text string) {
	b.t.Helper()
	ctx, boots := b.t.Context(), map[string]volume.Boot{}
	if id, machine, ok := strings.Cut(text, "@"); ok {
		boots["a"] = volume.Boot{ID: id, Machine: strings.TrimSuffix(machine, "!"), Late: strings.HasSuffix(machine, "!")}
	}
	switch what {
	case "look":
		b.look(boots, 10*time.Second)
	case "unread":
		b.look(nil, 10*time.Second)
	case "gap":
		b.look(nil, time.Minute)
	case "fence":
		b.phase(volume.Fenced)
	case "fencing":
		b.phase(volume.Fencing)
	case "lift":
		b.phase("")
	case "revoke":
		testkit.Must(b.t, b.l.Revoke(ctx, "v", "a", nil))
	case "await":
		b.awaiting = testkit.Value(b.l.AwaitingBoots(ctx))(b.t)
	case "recorded":
		testkit.Must(b.t, b.l.RecordBoots(ctx, b.awaiting, boots))
	case "record":
		testkit.Must(b.t, b.l.RecordBoots(ctx, testkit.Value(b.l.AwaitingBoots(ctx))(b.t), boots))
	case "ends":
		testkit.Must(b.t, b.l.ForgetRestarted(ctx, b.uses(), boots))
	default:
		b.t.Fatalf("event %q", what)
	}
}
