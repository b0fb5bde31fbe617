package ledger

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

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
		if err := l.RememberEnding(t.Context(), all); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Close()
	l, _ = openLedger(t, path)
	check(all)
	for range 2 {
		if err := l.ForgetEnding(t.Context(), all[:3000]); err != nil {
			t.Fatal(err)
		}
	}
	check(all[3000:])
	all[3000].Session.Holder = "" // said anew
	if err := errors.Join(l.RememberEnding(t.Context(), all[3000:3001]), l.RememberEnding(t.Context(), nil), l.ForgetEnding(t.Context(), nil)); err != nil {
		t.Error(err)
	}
	check(all[3000:])
	for _, bad := range []Ending{{}, {Enforcer: "a"}, {Session: volume.Session{ID: "1"}}, {Enforcer: "a\x00b", Session: volume.Session{ID: "1"}}} {
		if err := l.RememberEnding(t.Context(), []Ending{all[0], bad}); !errors.Is(err, errs.Internal) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	check(all[3000:])
}
