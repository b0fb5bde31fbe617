package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

var plainNetip = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func fenceOf(block, owner string, phase volume.FencePhase) volume.Fence {
	return volume.Fence{
		Block: netip.MustParsePrefix(block), Phase: phase, Since: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Owner: volume.FenceOwner{Digest: owner},
	}
}

func setFences(t testing.TB, l *Ledger, list ...volume.Fence) (before, after []volume.Fence) {
	t.Helper()
	before, after, err := l.ChangeFences(t.Context(), func([]volume.Fence) ([]volume.Fence, error) { return list, nil })
	testkit.Must(t, err)
	return before, after
}

func wantFences(t testing.TB, l *Ledger, want []volume.Fence) {
	t.Helper()
	got, err := l.Fences(t.Context())
	if diff := cmp.Diff(want, got, plainNetip); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestFencesAreKeptInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	l, s := openLedger(t, path)
	sorted := []volume.Fence{
		fenceOf("0.0.0.0/0", "a", volume.Fenced),
		fenceOf("10.0.0.0/8", "a", volume.Lifting),
		fenceOf("10.0.0.0/9", "a", volume.Fenced),
		fenceOf("10.0.0.0/10", "a", volume.Fenced),
		fenceOf("10.0.0.0/10", "b", volume.Lifted),
		fenceOf("10.0.0.1/32", "a", volume.Fencing),
		fenceOf("192.0.2.0/24", "a", volume.Fenced),
		fenceOf("::/0", "a", volume.Fenced),
		fenceOf("2001:db8::/32", "a", volume.Fenced),
		fenceOf("2001:db8::1/128", "a", volume.Fenced),
	}
	sorted[3].Force, sorted[3].Owner.Keys = true, []string{"clusterID", "pool"}
	mixed := slices.Clone(sorted)
	slices.Reverse(mixed)
	before, after := setFences(t, l, mixed...)
	if diff := cmp.Diff(sorted, after, plainNetip); len(before) != 0 || diff != "" {
		t.Errorf("before %v, after (-want +got):\n%s", before, diff)
	}
	_ = s.Close()
	l, _ = openLedger(t, path)
	wantFences(t, l, sorted)

	changed := slices.Delete(slices.Clone(sorted), 1, 3)
	changed[0].Phase, changed[1].Force = volume.Lifting, false
	before, after = setFences(t, l, changed...)
	testkit.Diff(t, "result", [][]volume.Fence{sorted, changed}, [][]volume.Fence{before, after}, plainNetip)
	wantFences(t, l, changed)
	setFences(t, l)
	wantFences(t, l, nil)
}

// Changes of decide to its list do not affect what is written.
func TestDecideCanModifyItsList(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	setFences(t, l, fenceOf("192.0.2.0/24", "a", volume.Fencing))
	_, after, err := l.ChangeFences(t.Context(), func(now []volume.Fence) ([]volume.Fence, error) {
		now[0].Phase = volume.Fenced
		return now, nil
	})
	testkit.Must(t, err)
	wantFences(t, l, after)
}

func TestRefusedChanges(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	good := fenceOf("192.0.2.0/24", "a", volume.Fenced)
	setFences(t, l, good)
	mine := errors.New("mine")
	unmasked, mapped, noOwner, phase := good, good, good, good
	unmasked.Block = netip.MustParsePrefix("192.0.2.1/24")
	mapped.Block = netip.MustParsePrefix("::ffff:192.0.2.0/120")
	noOwner.Owner.Digest = ""
	phase.Phase = "unknown"
	for name, c := range map[string]struct {
		next []volume.Fence
		err  error
		want error
	}{
		"refused by the caller": {nil, mine, mine},
		"unmasked":              {[]volume.Fence{unmasked}, nil, errs.Internal},
		"4in6":                  {[]volume.Fence{mapped}, nil, errs.Internal},
		"none":                  {[]volume.Fence{{}}, nil, errs.Internal},
		"without an owner":      {[]volume.Fence{noOwner}, nil, errs.Internal},
		"unknown phase":         {[]volume.Fence{phase}, nil, errs.Internal},
		"twice":                 {[]volume.Fence{good, good}, nil, errs.Internal},
	} {
		before, after, err := l.ChangeFences(t.Context(), func([]volume.Fence) ([]volume.Fence, error) { return c.next, c.err })
		if !errors.Is(err, c.want) || before != nil || after != nil {
			t.Errorf("%s: %v, %v, %v", name, before, after, err)
		}
		wantFences(t, l, []volume.Fence{good})
	}
}

// TestPowerLoss: acknowledged changes are already in the file.
func TestPowerLoss(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLedger(t, filepath.Join(dir, "l.db"))
	afterwards := func() *Ledger {
		t.Helper()
		image := testkit.Value(os.ReadFile(filepath.Join(dir, "l.db")))(t)
		path := filepath.Join(t.TempDir(), "l.db")
		testkit.Must(t, os.WriteFile(path, image, 0o600))
		copied, _ := openLedger(t, path)
		return copied
	}
	leave := testkit.Value(l.Enter(t.Context(), client("n1", "192.0.2.1")))(t)
	if c, ok, err := afterwards().Client(t.Context(), "n1"); !ok || err != nil || len(c.Addrs) != 1 {
		t.Errorf("the client: %v, %t, %v", c, ok, err)
	}
	setFences(t, l, fenceOf("192.0.2.0/24", "a", volume.Fencing))
	copied := afterwards()
	testkit.WantError(t, "granted after the intent", testkit.Err(copied.Grant(t.Context(), grantOf("v", "n1"))), errs.Precondition)
	testkit.WantError(t, "let in after the intent", testkit.Err(copied.Enter(t.Context(), volume.Client{Node: "n1"})), errs.Precondition)
	// Clients inside before the restart are gone.
	testkit.Must(t, copied.Quiet(t.Context(), []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}))
	leave()
	ending := []Ending{{Enforcer: "sock", Session: volume.Session{ID: "1"}}}
	testkit.Must(t, l.RecordEnding(t.Context(), ending))
	if got, err := afterwards().Ending(t.Context()); err != nil || !cmp.Equal(ending, got, cmpopts.EquateComparable(netip.AddrPort{})) {
		t.Errorf("sessions: %v, %v", got, err)
	}
	setFences(t, l)
	if _, err := afterwards().Grant(t.Context(), grantOf("v", "n1")); err != nil {
		t.Errorf("after it was lifted: %v", err)
	}
}

// TestStoreOfBefore: a store of a release without fences can be opened.
func TestStoreOfBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	_, s := openLedger(t, path)
	testkit.Must(t, s.Update(t.Context(), func(tx *store.Tx) error {
		old := map[string]any{
			"volume": "v1", "mode": "SINGLE_NODE_WRITER", "granted": "2026-01-02T03:04:05Z",
			"client": map[string]any{"node": "n1", "hostNQN": "nqn.n1"},
		}
		return errors.Join(
			store.Bucket[any]{Name: "grants"}.Put(tx, "v1\x00n1", old),
			store.Bucket[any]{Name: "grants-by-node"}.Put(tx, "n1\x00v1", struct{}{}),
		)
	}))
	_ = s.Close()
	l, _ := openLedger(t, path)
	wantFences(t, l, nil)
	if all, err := l.Clients(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("clients: %v, %v", all, err)
	}
	if all, err := l.Ending(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("sessions: %v, %v", all, err)
	}
	if d := denialFor(t, l, client("n1", "192.0.2.1")); d != nil {
		t.Errorf("fenced: %+v", d)
	}
	again := grantOf("v1", "n1") // with addresses, which it had not
	if got, err := l.Grant(t.Context(), again); err != nil || got.Client.Addrs != nil {
		t.Errorf("the same again: %+v, %v", got, err)
	}
	if c, ok, err := l.Client(t.Context(), "n1"); !ok || err != nil || len(c.Addrs) != 1 {
		t.Errorf("who it is now: %v, %t, %v", c, ok, err)
	}
	if held, err := l.ByNode(t.Context(), "n1"); err != nil || len(held) != 1 {
		t.Errorf("of the node: %v, %v", held, err)
	}
}

// An unreadable fence refuses clients.
func TestDamagedFenceAdmitsNoClient(t *testing.T) {
	l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	f := fenceOf("192.0.2.0/24", "a", volume.Fenced)
	testkit.Must(t, s.Update(t.Context(), func(tx *store.Tx) error {
		return store.Bucket[string]{Name: fences().Name}.Put(tx, fenceKey(f), "noise")
	}))
	testkit.WantError(t, "granted", testkit.Err(l.Grant(t.Context(), grantOf("v", "n1"))), store.ErrDamaged)
	testkit.WantError(t, "let in", testkit.Err(l.Enter(t.Context(), client("n1", "192.0.2.1"))), store.ErrDamaged)
	testkit.WantError(t, "listed", testkit.Err(l.Fences(t.Context())), store.ErrDamaged)
	if _, err := l.Enter(t.Context(), client("n2", "198.51.100.1")); err != nil {
		t.Errorf("elsewhere: %v", err)
	}
}

func TestSessionsBeingEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	l, s := openLedger(t, path)
	var all []Ending
	for _, enforcer := range []string{"host", "spdk"} {
		for i := range 3000 {
			all = append(all, Ending{Enforcer: enforcer, Session: volume.Session{
				ID: fmt.Sprintf("session-%05d", i), Holder: "nbd-server (process 12)",
				Client: netip.MustParseAddrPort("192.0.2.1:1000"), Server: netip.MustParseAddrPort("192.0.2.9:10809"),
			}})
		}
	}
	check := func(want []Ending) {
		t.Helper()
		got, err := l.Ending(t.Context())
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
	}
	for range 2 {
		testkit.Must(t, l.RecordEnding(t.Context(), all))
	}
	_ = s.Close()
	l, _ = openLedger(t, path)
	check(all)
	for range 2 {
		testkit.Must(t, l.ForgetEnding(t.Context(), all[:3000]))
	}
	check(all[3000:])
	all[3000].Session.Holder = "" // reported again
	testkit.Must(t, l.RecordEnding(t.Context(), all[3000:3001]), l.RecordEnding(t.Context(), nil), l.ForgetEnding(t.Context(), nil))
	check(all[3000:])
	for _, bad := range []Ending{{}, {Enforcer: "a"}, {Session: volume.Session{ID: "1"}}, {Enforcer: "a\x00b", Session: volume.Session{ID: "1"}}} {
		if err := l.RecordEnding(t.Context(), []Ending{all[0], bad}); !errors.Is(err, errs.Internal) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	check(all[3000:])
}

// A client with a grant is admitted until it is fenced, and again as soon as
// the fence is being lifted.
func TestAdmitted(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	for _, c := range []volume.Client{client("n1", "192.0.2.1"), client("n2", "192.0.2.2")} {
		_, err := l.Grant(t.Context(), volume.Grant{Volume: "v", Client: c, Mode: "MULTI_NODE_MULTI_WRITER/block"})
		testkit.Must(t, err)
	}
	for _, step := range []struct {
		phase volume.FencePhase
		want  []string
	}{{"", []string{"n1", "n2"}}, {volume.Fencing, []string{"n2"}}, {volume.Fenced, []string{"n2"}}, {volume.Lifting, []string{"n1", "n2"}}} {
		if step.phase != "" {
			setFences(t, l, fenceOf("192.0.2.1/32", "a", step.phase))
		}
		var got []string
		for _, c := range testkit.Value(l.Admitted(t.Context(), "v"))(t) {
			got = append(got, c.Node)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("phase %q: admitted %q, want %q", step.phase, got, step.want)
		}
		all := testkit.Value(l.Records(t.Context()))(t)
		if len(all.Grants) != 2 || len(all.Admitted("v")) != len(step.want) || len(all.Admitted("u"))+len(all.Admitted("w")) > 0 {
			t.Errorf("phase %q: the records are %+v, want %q admitted to v", step.phase, all, step.want)
		}
	}
}

// A grant that is being revoked admits no client, keeps other nodes out, and shows
// a fence where its client was.
func TestRevoking(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	ctx := t.Context()
	grant := func(node string) error {
		_, err := l.Grant(ctx, volume.Grant{Volume: "v", Client: client(node, "192.0.2.1"), Mode: "SINGLE_NODE_WRITER/mount"})
		return err
	}
	failed := errors.New("the storage does not answer")
	revoke := func() error { return l.Revoke(ctx, "v", "n1", func(context.Context) error { return failed }) }
	testkit.Must(t, grant("n1"))
	if err := revoke(); !errors.Is(err, failed) {
		t.Fatalf("revoke: %v, want %v", err, failed)
	}
	if all := testkit.Value(l.Admitted(ctx, "v"))(t); len(all) != 0 {
		t.Errorf("admitted while it is being revoked: %v", all)
	}
	testkit.WantError(t, "a grant to another node", grant("n2"), errs.Precondition, "n1")
	setFences(t, l, fenceOf("192.0.2.1/32", "a", volume.Fencing))
	if all := testkit.Value(l.Records(ctx))(t).Grants; len(all) != 1 || all[0].Client.Node != "n1" || len(all[0].Fenced) != 1 {
		t.Errorf("grants, of which the client is fenced: %+v", all)
	}
	setFences(t, l)
	// The node gets the volume again, and keeps it if that happens during the call.
	testkit.Must(t, grant("n1"), l.Revoke(ctx, "v", "n1", func(context.Context) error { return grant("n1") }))
	if all := testkit.Value(l.Admitted(ctx, "v"))(t); len(all) != 1 {
		t.Errorf("admitted after a grant: %v", all)
	}
	// … and if another revocation of it has begun and failed since.
	testkit.Must(t, l.Revoke(ctx, "v", "n1", func(context.Context) error {
		if err := errors.Join(grant("n1"), revoke()); !errors.Is(err, failed) {
			t.Errorf("granted and half revoked again: %v", err)
		}
		return nil
	}))
	if all := testkit.Value(l.Of(ctx, "v"))(t); len(all) != 1 || all[0].Revoking.IsZero() {
		t.Errorf("grants after overlapping revocations: %v", all)
	}
	testkit.Must(t, l.Revoke(ctx, "v", "", func(context.Context) error { return nil }))
	if all := testkit.Value(l.Of(ctx, "v"))(t); len(all) != 0 {
		t.Errorf("left: %v", all)
	}
}
