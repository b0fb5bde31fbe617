package ledger

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func instanceOf(id, addr string, nonce uint32) volume.Instance {
	return volume.Instance{Volume: volume.ID(id), Addr: netip.MustParseAddr(addr), Nonce: nonce, Client: uint64(nonce) + 4000}
}

// age makes the recorded instances look older.
func age(t *testing.T, s database, by time.Duration) {
	t.Helper()
	testkit.Must(t, s.Update(t.Context(), func(tx *store.Tx) (err error) {
		for e := range instances().Range(tx, "") {
			e.Value.Seen = e.Value.Seen.Add(-by)
			err = errors.Join(err, instances().Put(tx, e.Key, e.Value))
		}
		return err
	}))
}

func wantInstances(t *testing.T, l *Ledger, block string, want ...string) {
	t.Helper()
	var got []string
	for _, i := range testkit.Value(l.Records(t.Context()))(t).InstancesIn(netip.MustParsePrefix(block).Contains) {
		if age := time.Since(i.Seen); age < 0 || uint64(i.Nonce)+4000 != i.Client {
			t.Errorf("recorded %+v", i)
		}
		got = append(got, fmt.Sprint(i.Volume, "@", i.Addr, "/", i.Nonce))
	}
	if !slices.Equal(got, want) {
		t.Errorf("instances in %s: %q, want %q", block, got, want)
	}
}

func TestInstances(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	l, s := openLedger(t, path)
	recordClients(t, l, client("n1", "192.0.2.1", "2001:db8::1"))
	seen := []volume.Instance{
		instanceOf("v", "192.0.2.1", 1), instanceOf("v", "192.0.2.1", 2), instanceOf("v", "192.0.2.2", 1),
		instanceOf("w", "::ffff:192.0.2.1", 1), instanceOf("x", "2001:db8::1", 7),
	}
	for range 2 {
		testkit.Must(t, l.RecordInstances(t.Context(), seen))
	}
	_ = s.Close()
	l, _ = openLedger(t, path)
	// With one address of a node, the others count as well.
	wantInstances(t, l, "192.0.2.1/32", "v@192.0.2.1/1", "v@192.0.2.1/2", "w@192.0.2.1/1", "x@2001:db8::1/7")
	wantInstances(t, l, "2001:db8::/32", "v@192.0.2.1/1", "v@192.0.2.1/2", "w@192.0.2.1/1", "x@2001:db8::1/7")
	wantInstances(t, l, "192.0.2.2/32", "v@192.0.2.2/1")
	wantInstances(t, l, "192.0.2.3/32")
	for name, bad := range map[string]volume.Instance{
		"no address": {Volume: "v"}, "no volume": instanceOf("", "192.0.2.1", 1), "a NUL": instanceOf("a\x00", "192.0.2.1", 1),
	} {
		testkit.WantError(t, name, l.RecordInstances(t.Context(), []volume.Instance{seen[0], bad}), errs.Invalid)
	}
}

// A day after it was last seen an instance is removed, unless its volume has a
// grant or a fence covers it.
func TestInstancesAreKept(t *testing.T) {
	l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	recordClients(t, l, client("n1", "192.0.2.1"), client("n2", "192.0.2.2", "198.51.100.2"))
	granted := grantOf("granted", "n1")
	testkit.Value(l.Grant(t.Context(), granted))(t)
	setFences(t, l, fenceOf("198.51.100.0/24", "a", volume.Lifting), fenceOf("203.0.113.0/24", "a", volume.Lifted))
	testkit.Must(t, l.RecordInstances(t.Context(), []volume.Instance{
		instanceOf("granted", "192.0.2.1", 1), instanceOf("gone", "192.0.2.1", 2), instanceOf("open", "192.0.2.1", 3),
		instanceOf("fenced", "198.51.100.9", 4), instanceOf("fenced", "192.0.2.2", 5), instanceOf("lifted", "203.0.113.1", 6),
	}))
	age(t, s, keepInstance-time.Minute)
	testkit.Must(t, l.RecordInstances(t.Context(), nil))
	wantInstances(t, l, "0.0.0.0/0", "fenced@192.0.2.2/5", "fenced@198.51.100.9/4", "gone@192.0.2.1/2", "granted@192.0.2.1/1", "lifted@203.0.113.1/6", "open@192.0.2.1/3")
	age(t, s, time.Minute)
	testkit.Must(t, l.RecordInstances(t.Context(), []volume.Instance{instanceOf("open", "192.0.2.1", 3)}))
	wantInstances(t, l, "0.0.0.0/0", "fenced@192.0.2.2/5", "fenced@198.51.100.9/4", "granted@192.0.2.1/1", "open@192.0.2.1/3")
	setFences(t, l)
	testkit.Must(t, l.Revoke(t.Context(), "granted", "n1", nil), l.RecordInstances(t.Context(), nil))
	wantInstances(t, l, "0.0.0.0/0", "open@192.0.2.1/3")
}

// A known instance causes no write within an hour.
func TestKnownInstanceIsNotWrittenAgain(t *testing.T) {
	l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	seen := []volume.Instance{instanceOf("v", "192.0.2.1", 1)}
	testkit.Must(t, l.RecordInstances(t.Context(), seen))
	age(t, s, seenStep-time.Minute)
	testkit.Must(t, s.Update(t.Context(), func(*store.Tx) error { // no other writer meanwhile
		return l.RecordInstances(t.Context(), seen)
	}))
	age(t, s, 2*time.Minute)
	testkit.Must(t, l.RecordInstances(t.Context(), seen))
	if got := testkit.Value(l.Records(t.Context()))(t).Instances; time.Since(got[0].Seen) > seenStep {
		t.Errorf("not seen again: %+v", got)
	}
}
