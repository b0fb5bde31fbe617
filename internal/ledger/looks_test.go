package ledger

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// TestUnseen: what a look at a volume says about its grants, by the times in
// seconds of the events before. Expiry is 30.
func TestUnseen(t *testing.T) {
	base := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	for name, events := range map[string]struct{ events, want string }{
		"looks in time":                        {"start 0, grant 5, look 10, look 20, look 50, look 80", ""},
		"the first look is too late":           {"start 0, grant 5, look 40", "v since 5"},
		"a later one is too late":              {"start 0, grant 5, look 10, look 41, look 51", "v since 10"},
		"down, from before NodeStage":          {"start 0, grant 5, look 10, start 300", "v since 10"},
		"a short restart":                      {"start 0, grant 5, look 10, start 30, look 39", ""},
		"granted after a pause without grants": {"start 0, look 10, grant 500, look 510", ""},
		"a grant of an earlier build":          {"grant 5, start 100", "v since 5"},
		"a recent grant of an earlier build":   {"grant 5, start 10, look 12", ""},
		"a list that fails, once":              {"start 0, grant 5, fail 10, look 20", ""},
		"a list that fails for long":           {"start 0, grant 5, fail 10, fail 20, fail 30, look 40, look 50", "v since 5"},
		"other volumes only":                   {"start 0, grant 5, look 10, other 20, look 45", "v since 10"},
		"revoked before a look":                {"start 0, grant 5, revoke 8", "v since 5"},
		"revoked, then a look in time":         {"start 0, grant 5, revoke 8, look 12", ""},
		"revoked, and the look is too late":    {"start 0, grant 5, look 10, revoke 20, look 41", "v since 10"},
		"revoked during a look":                {"start 0, grant 5, look 10, revoke 22, begun 21 25", "v since 10"},
		"revoked and granted again":            {"start 0, grant 5, revoke 8, grant 9, look 12, look 20", ""},
		"blocked: nothing new, nothing seen":   {"start 0, grant 5, fail 10, blocked 20, blocked 100", "v since 5"},
		"blocked after a look":                 {"start 0, grant 5, look 10, blocked 60, blocked 100", ""},
		"revoked while fenced":                 {"start 0, grant 5, look 10, fence 12, revoke 60, blocked 70", ""},
		"revoked long ago":                     {"start 0, grant 5, look 60, revoke 70, look 86480", ""},
		"revoked long ago, and fenced":         {"start 0, grant 5, look 60, fence 65, revoke 70, blocked 86480", "v since 5"},
		"a clock that was set back":            {"start 0, grant 200, look 10", "v since 200"},
		"the node was restarted":               {"start 0, grant 5, look 100, forget 101, look 110", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
			for event := range strings.SplitSeq(events.events, ", ") {
				var what string
				var at, ended int
				fmt.Sscan(event, &what, &at, &ended)
				l.happens(t, what, base.Add(time.Duration(at)*time.Second), base.Add(time.Duration(max(at, ended))*time.Second))
			}
			var got []string
			for _, u := range testkit.Value(l.Unseen(t.Context(), []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}))(t) {
				got = append(got, fmt.Sprintf("%s since %.0f", u.Volume, u.Since.Sub(base).Seconds()))
			}
			if text := strings.Join(got, ", "); text != events.want {
				t.Errorf("unseen: %q, want %q", text, events.want)
			}
		})
	}
}

func (l *Ledger) happens(t *testing.T, what string, at, ended time.Time) {
	t.Helper()
	client := volume.Client{Node: "a", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	o := look{volume.Look{Begun: at, All: true, Volumes: map[volume.ID]bool{"v": true}, Expiry: 30 * time.Second}}
	switch what {
	case "grant":
		testkit.Value(l.Grant(t.Context(), volume.Grant{Volume: "v", Client: client, Mode: "SINGLE_NODE_WRITER/block", Granted: at}))(t)
		return
	case "revoke":
		testkit.Must(t, l.Revoke(t.Context(), "v", "a", nil))
		testkit.Must(t, l.store.Update(t.Context(), func(tx *store.Tx) error { // at that time
			u, ok, err := unseen().Get(tx, "a"+separator+"v")
			if !ok || err != nil {
				return err
			}
			u.Released = at
			return unseen().Put(tx, u.key(), u)
		}))
		return
	case "fence":
		_, _, err := l.ChangeFences(t.Context(), func([]volume.Fence) ([]volume.Fence, error) {
			return []volume.Fence{{Block: netip.MustParsePrefix("192.0.2.1/32"), Owner: volume.FenceOwner{Digest: "o"}, Phase: volume.Fenced}}, nil
		})
		testkit.Must(t, err)
		return
	case "forget":
		testkit.Must(t, l.ForgetUnseen(t.Context(), []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}))
		return
	case "start":
		o.Begun, o.All = time.Time{}, false
	case "fail":
		o.Volumes["v"] = false
	case "other":
		o.All, o.Volumes = false, map[volume.ID]bool{"w": true}
	case "blocked":
		o.Blocked = func(c volume.Client) bool { return c.Node == "a" }
	}
	testkit.Must(t, l.store.Update(t.Context(), func(tx *store.Tx) error {
		_, err := o.record(tx, ended)
		return err
	}))
}
